"""What attention in a checkpointed part gave, given again when that part is computed again (``save="out+lse"``).

PyTorch's activation checkpointing runs a part of a model again in backward. What belongs to the part is an object of PyTorch's
own, which lives as long as the part's graph and is the same in both runs: here it gets one attribute, the list of what the
part's calls gave. So nothing is to be said to ``torch.utils.checkpoint``, and nothing outlives a graph.
"""

import inspect
import sys
import weakref

import torch
from torch.utils import checkpoint as _torch

from rueda import _replay
from rueda.attention._calls import Ended

_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # PyTorch 2.7
_FIRST = _torch.CheckpointFunction.forward.__code__  # of use_reentrant=True; the first argument is the part
_AGAIN = _torch.CheckpointFunction.backward.__code__
_NAME = "_rueda_attention"


def once(plan, save, run):
    """What ``run()`` gives, (call, saved, *tensors), or what it gave before, where this is a computation once more.

    Raises
    ------
    RuntimeError
        The part calls something else than before, or has written to a result.
    ValueError
        This PyTorch does not tell what is checkpointed.
    """
    if _replay.entered and not plan.local:  # `rueda.torch.checkpoint` keeps what ranks give, whatever ``save`` is
        return _replay.once("attention", lambda: _finished(run))
    if save != "out+lse":
        return run()
    if _top_hooks is None:
        raise ValueError(
            f"save='out+lse' needs PyTorch 2.7 or newer, this is {torch.__version__}; rueda.torch.checkpoint(layer, x) keeps the "
            "results of attention with every version"
        )
    part, again = _part()
    results = getattr(part, _NAME, None)
    if again is not None and results is not None:
        return results.give(plan, again)
    if part is None or again is not None:  # a part of a part, that kept it for the outer one
        return run()
    if results is None:
        results = _Results()
        setattr(part, _NAME, results)
    return results.keep(plan, run())


def _finished(run):
    call, *rest = run()
    call.wait()
    return (Ended(), *rest)


class _Results:
    """Those of the calls of one part, in their order."""

    def __init__(self):
        self._kept, self._next, self._again = [], 0, None

    def keep(self, plan, result):
        call, saved, *tensors = result
        # Without the graph that they become part of: it would never be freed.
        tensors = [x.detach() for x in tensors]
        self._kept.append((plan, call, saved, tensors, [*map(_version, tensors)]))
        return result

    def give(self, plan, again):
        """The next one. ``again``: equal for all calls of one computation."""
        if again != self._again:
            self._again, self._next = again, 0
        if self._next == len(self._kept) or self._kept[self._next][0] is not plan:
            raise RuntimeError(
                "what is checkpointed called attention otherwise when it was computed again: it must do the same each time"
            )
        _, call, saved, tensors, versions = self._kept[self._next]
        self._next += 1
        call.wait()
        if [*map(_version, tensors)] != versions:
            raise RuntimeError(
                "a result of attention that save='out+lse' keeps was modified by an inplace operation: change a copy (out.clone())"
            )
        return (call, saved, *(x.detach() for x in tensors))


def _version(tensor):
    """How often it was written to."""
    return 0 if tensor.is_inference() else tensor._version


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _part():
    """(the innermost checkpointed part that this runs in, None); the second is not None where it is computed again, and which time."""
    hooks = _top_hooks(True)
    if hooks is not None:
        for cell in getattr(inspect.unwrap(hooks[0]), "__closure__", None) or ():
            content = _content(cell)
            if isinstance(content, _torch._CheckpointFrame):
                return content, None
            if isinstance(content, weakref.ref) and isinstance(content(), _torch._CheckpointFrame):
                return content(), hooks[0]
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in (_FIRST, _AGAIN):
            part = frame.f_locals[frame.f_code.co_varnames[0]]
            return part, None if frame.f_code is _FIRST else torch._C._current_graph_task_id()
        frame = frame.f_back
    return None, None
