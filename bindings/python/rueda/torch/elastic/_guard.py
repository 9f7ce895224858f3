"""`guard`: the loss of a rank costs a batch, and not the training function."""

from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.elastic._points import points
from rueda.elastic._replicas import Replicas
from rueda.torch import _epochs
from rueda.torch._distributed import _Distributed

__all__ = ["guard"]


def guard(optimizer, state, replica=None):
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
        Of all ranks. All ranks guard the same ones, before they train; again is allowed, in the training function, too.
    state : State
        That the training function gets.
    replica : int or list of ProcessSet, optional
        Groups of ranks that make one contribution together, as those that share a model's parts or a sequence: so many ranks,
        in the order of their numbers, or the members of each set. When a rank is lost, the gradients of all of its group are
        left out, of the batch under way and of those after it, and ``op=Average`` divides by the ranks of the complete groups;
        so it is the average of these groups' averages. ``optimizer.contributors`` is then the number of complete groups. The
        ranks that are left of a group make the steps with the others, and their gradients count for nothing until groups are
        formed anew: when the training function begins again, of the ranks that there are then. That is at the next commit
        where that gives a group more (of process sets it never does, as newcomers are in none: call `guard` with others). When
        no group is complete, training goes on from the newest commit, and it is an error if none can be formed. The same on all
        ranks, and for all optimizers of the state; left out, it stays as it was. Given in the training function it holds when
        that begins again.

    Returns
    -------
    The optimizer. In a job that is not elastic nothing is changed.

    Raises
    ------
    ValueError
        ``replica`` is none of these. The state has ``local=``. Or steps cannot be repeated: Adasum, compression with a memory,
        sharded, relaxed, communication hooks, a process set.
    RuntimeError
        The state trains already, and was not guarded when the training function began.
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
    replicas = getattr(state, "_replicas", None) or Replicas()
    if replica is not None:
        if optimizer._reduce_settings.op not in (basics.Average, basics.Sum):
            raise ValueError("guard(): replica= is for op=Average and op=Sum: nothing else can leave a rank out")
        replicas.use(replica)
    if _epochs.is_elastic():
        if points.state is state and not state._is_guarded:
            raise RuntimeError(
                "guard() is to be called before the training function, not first in it: ranks that join begin with a state "
                "that is not guarded, and wait for other operations than ranks whose state is"
            )
        optimizer._guard(replicas)
        state._is_guarded, state._replicas = True, replicas
    return optimizer
