"""Shares that other ranks have updated arrive while the next forward runs already.

    step():    ... -> every rank's shares are on their way to all
    forward:   | module 0 waits for its batches | module 0 | module 1 ... |        later batches arrive meanwhile

Whoever takes a parameter from its module waits for its batch, whether that module runs, or another one uses its parameter,
or a script looks at it. Batches are on their way in the order of forward.
"""

import contextlib
import copy
import threading
import weakref

from rueda._runtime import runtime
from rueda.torch._outside import outside_graphs


class Arrivals:
    """Of one optimizer's parameters in a model. Does not keep the model."""

    def __init__(self, module):
        self._module, self._watched = weakref.ref(module), []  # (module, its hook)
        self._under_way, self._lock = {}, threading.RLock()  # batch: collective
        runtime.before_leaving.add(self)

    def watch(self, batches):
        """From now on these are waited for, and no others."""
        self.end()
        of = {slot.parameter: batch for batch in batches for slot in batch.slots}
        for each in self._module().modules():
            mine = {name: of[p] for name, p in dict.items(each._parameters) if p in of}
            if mine:
                hook = each.register_forward_pre_hook(Gate(self, tuple(dict.fromkeys(mine.values()))))
                each._forward_pre_hooks.move_to_end(hook.id, last=False)
                if not isinstance(each._parameters, Awaited):
                    each.__dict__["_parameters"] = Awaited(each._parameters)
                each._parameters.await_also(self, mine)
                self._watched.append((weakref.ref(each), hook))

    def start(self, under_way):
        """``under_way``: of batches, in the order of forward, the collective of each."""
        self._under_way = under_way

    def wait(self, batches=None):
        """Until these are whole; all of them by default. Threads: any."""
        if not self._under_way:
            return
        with self._lock:
            for batch in list(self._under_way) if batches is None else batches:
                arriving = self._under_way.get(batch)
                if arriving is not None:
                    try:
                        arriving.wait()
                    finally:
                        del self._under_way[batch]

    def finish(self):
        """Waits; what cannot arrive any more, as its job is over, is not an error here."""
        while self._under_way:
            with contextlib.suppress(Exception):
                self.wait()

    def end(self):
        """Leaves the model as it was."""
        try:
            self.finish()
        finally:
            watched, self._watched = self._watched, []
            for module, hook in watched:
                hook.remove()
                if module() is not None:
                    _unwatch(module(), self)


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
    """A module's parameters by name: whoever takes one waits until it is whole. Of all optimizers that have some."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.kind, self._awaited = type(parameters), {}  # name: (arrivals, batch)

    def await_also(self, arrivals, batches):
        self._awaited.update((name, (arrivals, batch)) for name, batch in batches.items())

    def forget(self, arrivals):
        """Whether there is nothing left to wait for."""
        self._awaited = {name: each for name, each in self._awaited.items() if each[0] is not arrivals}
        return not self._awaited

    def _wait(self):
        for arrivals, batch in list(self._awaited.values()):
            arrivals.wait((batch,))

    def __getitem__(self, name):
        found = self._awaited.get(name)
        if found is not None:
            found[0].wait((found[1],))
        return super().__getitem__(name)

    def get(self, name, default=None):
        return self[name] if name in self else default

    def values(self):
        self._wait()
        return super().values()

    def items(self):
        self._wait()
        return super().items()

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.kind(self.items()), memo)

    def __reduce_ex__(self, protocol):
        return self.kind, (dict(self.items()),)


def _unwatch(module, arrivals):
    parameters = module._parameters
    if isinstance(parameters, Awaited) and parameters.forget(arrivals):
        module.__dict__["_parameters"] = parameters.kind(dict.items(parameters))
