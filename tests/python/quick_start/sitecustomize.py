"""For processes that tests start: PyTorch loads its compiler only where something is compiled.

Making an optimizer and its step import ``torch._dynamo``, to keep some methods out of compiled graphs: 1.5 s of processor time in
each rank. As long as nobody else has imported it, nothing is compiled, and there is nothing to keep out.
"""

import functools
import importlib.abc
import importlib.util
import sys


def _is_loaded():
    return "torch._dynamo" in sys.modules


def _disable_dynamo(disable):
    """Of ``torch._compile``: calls of the function as it is."""

    @functools.wraps(disable)
    def disable_if_loaded(fn=None, recursive=True):
        if fn is None:
            return functools.partial(disable_if_loaded, recursive=recursive)
        excluded = disable(fn, recursive)

        @functools.wraps(fn)
        def call(*args, **kwargs):
            return (excluded if _is_loaded() else fn)(*args, **kwargs)

        return call

    return disable_if_loaded


def _use_grad_for_differentiable(decorate):
    """Of ``torch.optim.optimizer``: the step, without a break in a graph that is not there."""

    @functools.wraps(decorate)
    def decorate_quickly(step):
        import torch

        whole = decorate(step)

        @functools.wraps(step)
        def call(self, *args, **kwargs):
            if _is_loaded():
                return whole(self, *args, **kwargs)
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return step(self, *args, **kwargs)

        return call

    return decorate_quickly


_REPLACED = {"torch._compile": _disable_dynamo, "torch.optim.optimizer": _use_grad_for_differentiable}


class _Finder(importlib.abc.MetaPathFinder):
    """Of the modules that are changed when they have been loaded."""

    def __init__(self):
        self._left = set(_REPLACED)

    def find_spec(self, name, path=None, target=None):
        if name not in self._left:
            return None
        self._left.remove(name)  # the others find it
        spec = importlib.util.find_spec(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, _REPLACED[name])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, replace):
        self._loader, self._replace = loader, replace

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        original = getattr(module, self._replace.__name__, None)
        if original is not None:  # other releases have others
            setattr(module, self._replace.__name__, self._replace(original))

    def __getattr__(self, name):  # get_source for tracebacks, and the like
        return getattr(self._loader, name)


sys.meta_path.insert(0, _Finder())
