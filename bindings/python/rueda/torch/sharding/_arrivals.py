"""Shares that other ranks have updated arrive while the next forward runs already.

    step():    ... -> every rank's shares are on their way to all
    forward:   | module 0 waits for its batches | module 0 | module 1 ... |        later batches arrive meanwhile

Whoever takes a parameter from its module waits for its batch, whether that module runs, or another one uses its parameter,
or a script looks at it. Batches are on their way in the order of forward.
"""

import copy
import functools

from rueda.torch._outside import outside_graphs


class Arrivals:
    """Of a model's parameters."""

    def __init__(self, module):
        self._module, self._under_way, self._removers = module, {}, []  # under way: batch: collective

    def watch(self, batches):
        """From now on these are waited for, and no others."""
        self.end()
        of = {slot.parameter: batch for batch in batches for slot in batch.slots}
        for each in self._module.modules():
            mine = {name: of[p] for name, p in each._parameters.items() if p in of}
            if mine:
                self._removers += self._watch_module(each, mine)

    def _watch_module(self, module, batches):
        hook = module.register_forward_pre_hook(Gate(self, tuple(dict.fromkeys(batches.values()))))
        module._forward_pre_hooks.move_to_end(hook.id, last=False)
        kind = type(module._parameters)
        module.__dict__["_parameters"] = Awaited(module._parameters, batches, self.wait)
        return [hook.remove, functools.partial(_unwatch, module, kind)]

    def start(self, under_way):
        """``under_way``: of batches, in the order of forward, the collective of each."""
        self._under_way = under_way

    def wait(self, batches=None):
        """Until these are whole; all of them by default."""
        if self._under_way:
            for batch in list(self._under_way) if batches is None else batches:
                arriving = self._under_way.pop(batch, None)
                if arriving is not None:
                    arriving.wait()

    def end(self):
        """Leaves the model as it was."""
        self.wait()
        removers, self._removers = self._removers, []
        for remove in removers:
            remove()


class Gate:
    """The hook before a module's forward. That of a copy of the module waits for nothing."""

    def __init__(self, arrivals=None, batches=()):
        self._arrivals, self._batches = arrivals, batches

    @outside_graphs
    def __call__(self, module, arguments):
        if self._arrivals is not None:
            self._arrivals.wait(self._batches)

    def __deepcopy__(self, memo):
        return Gate()

    def __reduce__(self):
        return Gate, ()


class Awaited(dict):
    """A module's parameters by name: whoever takes one waits until it is whole."""

    def __init__(self, parameters, batches, wait):
        super().__init__(parameters)
        self._batches, self._wait = batches, wait

    def __getitem__(self, name):
        batch = self._batches.get(name)
        if batch is not None:
            self._wait((batch,))
        return super().__getitem__(name)

    def get(self, name, default=None):
        return self[name] if name in self else default

    def values(self):
        self._wait(self._batches.values())
        return super().values()

    def items(self):
        self._wait(self._batches.values())
        return super().items()

    def __deepcopy__(self, memo):
        return copy.deepcopy(dict(self.items()), memo)

    def __reduce_ex__(self, protocol):
        return dict, (dict(self.items()),)


def _unwatch(module, kind):
    module.__dict__["_parameters"] = kind(module._parameters.items())
