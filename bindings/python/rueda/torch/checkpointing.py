"""Activation checkpointing: what a part of a model computes for backward is computed again instead of kept.

PyTorch's own (``torch.utils.checkpoint``), with three things besides. Collectives run once: what other ranks gave
is kept and given again (`rueda._replay`), so recomputing sends nothing, in whatever order ranks do it. Buffers (running
statistics) are as if the forward had run once. What is kept can go to host memory or to a file (`_offload`).
"""

import contextlib
import threading

import torch
import torch.utils.checkpoint

from rueda import _replay
from rueda.torch import _offload
from rueda.torch._outside import outside_graphs


def checkpoint(function, *args, use_reentrant=False, offload=None, preserve_rng_state=True, **kwargs):
    """``function(*args, **kwargs)``, without keeping what it computes on the way for backward.

    Without arguments, of a module: makes it do so in every forward, and returns it. Its names in ``state_dict``
    stay the same.

    Parameters
    ----------
    function : torch.nn.Module or callable
        It must do the same when it is called again in backward. Collectives of `rueda.torch`, `rueda.numpy`
        and `rueda.attention` are not repeated: they give what they gave. Random numbers and autocast are as
        before, and so are the buffers of a module (running statistics change once).
    use_reentrant : bool
        As in ``torch.utils.checkpoint``: True is the older way, which needs an input that requires a gradient,
        and has no second derivatives.
    offload : None, "cpu" or str
        Where its inputs are until backward. "cpu": those on a device go to pinned host memory; what is on the
        host stays there. A folder: a file in it, without a name; for CPU tensors too. Parameters and tensors
        below 64 KiB stay.
    preserve_rng_state : bool
        As in ``torch.utils.checkpoint``.

    Returns
    -------
    What the function does; or the module.
    """
    options = {"use_reentrant": use_reentrant, "preserve_rng_state": preserve_rng_state}
    if offload is not None:
        _offload.hooks_for(offload)  # says what is wrong with it, before the first forward
    if args or kwargs:
        return _run(function, args, kwargs, offload, options)
    if not isinstance(function, torch.nn.Module):
        raise TypeError("checkpoint(function) without arguments is for modules; give the arguments, too")
    if isinstance(vars(function).get("forward"), _Forward):
        raise ValueError(f"this {type(function).__name__} is checkpointed already")
    function.forward = _Forward(function, offload, options)
    return function


class _Forward:
    """The forward of a checkpointed module. A part of it, which is copied and pickled with it."""

    def __init__(self, module, offload, options):
        self._module, self._offload, self._options = module, offload, options
        self._own = vars(module).get("forward")  # somebody has replaced the class's

    def __call__(self, *args, **kwargs):
        return _run(self._forward, args, kwargs, self._offload, self._options)

    def _forward(self, *args, **kwargs):
        if self._own is not None:
            return self._own(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)


@outside_graphs
def _run(function, args, kwargs, offload, options):
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    with contextlib.ExitStack() as stack:
        if offload is not None:
            hooks = _offload.hooks_for(offload)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
        return torch.utils.checkpoint.checkpoint(_Once(function), *args, **options, **kwargs)


_here = threading.local()  # .around: what is entered now, and must be when something is computed again


@contextlib.contextmanager
def entered_again(make):
    """Enters ``make()``, and again wherever something that was checkpointed inside is computed again."""
    before = getattr(_here, "around", ())
    _here.around = (*before, make)
    try:
        with make():
            yield
    finally:
        _here.around = before


class _Once:
    """A function that is called again in backward: then nothing leaves this rank."""

    def __init__(self, function):
        self._function, self._region = function, _replay.Region()
        owner = getattr(function, "__self__", function)
        owner = owner._module if isinstance(owner, _Forward) else owner
        self._around = getattr(_here, "around", ())
        self._owner = owner if isinstance(owner, torch.nn.Module) else None

    def __call__(self, *args, **kwargs):
        with contextlib.ExitStack() as stack:
            if stack.enter_context(self._region.run()):
                for make in self._around:
                    stack.enter_context(entered_again(make))
                stack.enter_context(_as_before(self._owner))
            return self._function(*args, **kwargs)


@contextlib.contextmanager
def _as_before(owner):
    """A module's buffers, whether they are changed in place or replaced."""
    before = [
        (module._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in (owner.modules() if owner is not None else ())
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, values in before:
                buffers[name] = buffer
                if buffer is not None and not torch.equal(buffer, values):  # their versions say nothing: batch_norm leaves them
                    buffer.data.copy_(values)  # which nothing that backward needs notices
