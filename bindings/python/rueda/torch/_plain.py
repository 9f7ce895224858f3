"""The optimizer that was wrapped: a script may go on to use it beside its `DistributedOptimizer`.

Both have one list of groups, one dictionary for each group and one state, so a scheduler that was given
the plain optimizer sets the learning rate of the distributed one, and groups and states that reach either
are the other's too. PyTorch's ``load_state_dict`` makes new ones; here what was loaded is put into those
that were there, as Horovod does with options that are broadcast.

Its ``step()`` is another matter: it would use gradients that are not reduced, or not yet. That is an error.
"""

import contextlib
import functools
import types
import weakref

import torch

from rueda._runtime import runtime


@contextlib.contextmanager
def same_objects(optimizer):
    """What is loaded within goes into the groups and the state that the optimizer has now."""
    before = optimizer.param_groups, optimizer.state
    yield
    take(optimizer, *before)


def take(optimizer, groups, state):
    """``groups`` and ``state`` get what the optimizer has, and become the optimizer's.

    An option that is in ``groups`` alone, such as one that a scheduler keeps there, stays. RuntimeError
    if there are more or fewer groups.
    """
    loaded, loaded_state = optimizer.param_groups, optimizer.state
    if len(groups) != len(loaded):
        raise RuntimeError(
            f"the optimizer has {len(loaded)} parameter groups where it had {len(groups)}; use "
            "add_param_group, or make a new DistributedOptimizer"
        )
    for group, new in zip(groups, loaded):
        group.update(new)
    if loaded_state is not state:
        state.clear()
        state.update(loaded_state)
    inner = [o for o in vars(optimizer).values() if isinstance(o, torch.optim.Optimizer)]
    for each in [optimizer, *inner]:  # optimizers around others share groups with them
        if each.param_groups is loaded:
            each.param_groups = groups
        if each.state is loaded_state:
            each.state = state


def empty(kind):
    """What a copy of a distributed optimizer begins as; it is pickled by name."""
    return kind.__new__(kind)


class Plain:
    """What a `DistributedOptimizer` knows of the optimizer that it was made of, which it keeps not alive."""

    def __init__(self, optimizer, distributed):
        self._optimizer = weakref.ref(optimizer)
        self._distributed = weakref.ref(distributed)

    def join(self):
        """Takes what was loaded into the plain one alone."""
        plain, distributed = self._optimizer(), self._distributed()
        if plain is None:
            return
        groups = vars(distributed)["param_groups"]
        if plain.param_groups is not groups:
            take(plain, groups, distributed.state)

    def follow(self, groups):
        """The distributed one has been given another list of groups."""
        plain = self._optimizer()
        if plain is not None:
            plain.param_groups = groups

    def note_step(self):
        """For its schedulers, which warn if they step and the optimizer has not."""
        plain = self._optimizer()
        if plain is not None:
            plain._opt_called = True
            if hasattr(plain, "_step_count"):  # that of an older PyTorch
                plain._step_count += 1

    def refuse_steps(self):
        """Its ``step()`` is an error from now on where gradients are, or would have been, reduced."""
        plain = self._optimizer()
        if plain is None:
            return
        is_guarded = "_rueda_distributed" in vars(plain)
        plain._rueda_distributed = self._distributed
        if is_guarded:
            return
        unguarded = plain.step

        @functools.wraps(unguarded)  # also with the marks of a scheduler
        def step(optimizer, *args, **kwargs):
            _check_step(optimizer._rueda_distributed())
            return unguarded(*args, **kwargs)

        plain.step = types.MethodType(step, plain)


def _check_step(distributed):
    """``distributed``: of the optimizer that is about to step; None if it lives no more."""
    if distributed is None:
        if runtime.is_initialized():
            raise RuntimeError(
                "step() of an optimizer that was wrapped by a DistributedOptimizer, which nobody has any "
                "more, so the gradients were not reduced. Keep what DistributedOptimizer() returned and use that."
            )
    elif distributed._counts_steps:
        raise RuntimeError(
            f"step() of an optimizer that was wrapped by hvd.{distributed._kind}, which counts steps. Use what that "
            "returned in its place."
        )
    elif distributed._this_step.pending or distributed._this_step.is_partial:
        raise AssertionError(
            "step() of an optimizer that was wrapped by a DistributedOptimizer, before its gradients "
            "were reduced. Use what DistributedOptimizer() returned in its place."
        )
