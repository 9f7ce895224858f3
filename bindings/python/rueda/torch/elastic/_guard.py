"""`guard`: the loss of a rank costs a batch, and not the training function."""

from rueda.common.process_sets import global_process_set
from rueda.torch import _epochs
from rueda.torch._distributed import _Distributed

__all__ = ["guard"]


def guard(optimizer, state):
    """Steps of ``optimizer`` and commits of ``state`` go on when a rank is lost, within the function that `run` calls.

    The survivors' gradients of the step under way are reduced again, among them, and divided by their number; nothing is
    computed again, and no step is applied on a part of the ranks. ``optimizer.contributors`` says how many ranks'
    gradients the newest step has. The price: memory for the gradients once more, and a small vote of the ranks in each step.

    Reset callbacks and samplers hear of it at the next commit, which then begins the function anew, without going back.
    When replacements come, when too few ranks are left, and when a loss is met in another collective than these (one of
    the script, of `SyncBatchNorm`), training goes on from the newest commit, as without a guard.

    Parameters
    ----------
    optimizer : DistributedOptimizer
        Of all ranks. All ranks guard the same ones, before they train; again is allowed.
    state : State
        That the training function gets.

    Returns
    -------
    The optimizer. In a job that is not elastic nothing is changed.

    Raises
    ------
    ValueError
        The state has ``local=``; or its steps cannot be repeated: Adasum, compression with a memory, sharded, relaxed, communication hooks, a process set.
    """
    if not isinstance(optimizer, _Distributed):
        raise ValueError(f"guard() is for what hvd.DistributedOptimizer returns, not for {type(optimizer).__name__}")
    if optimizer._reduce_settings.process_set is not global_process_set:
        raise ValueError("guard() is for optimizers of all ranks: this one's process_set= has some of them")
    if not optimizer._can_repeat_steps():
        raise ValueError("guard(): this optimizer's steps cannot be repeated with other ranks: what a step sends changes what it keeps")
    if getattr(state, "_local", None) is not None:
        raise ValueError(
            "guard() is for states without local=: what a lost rank had since the newest commit is on no mirror, and the others "
            "would go on without going back to it"
        )
    if _epochs.is_elastic():
        optimizer._guard()
        state.is_guarded = True
    return optimizer
