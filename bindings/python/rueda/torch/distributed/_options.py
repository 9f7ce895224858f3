"""PyTorch's option structs, also where a caller gives their fields instead."""

import operator

from torch.distributed import AllreduceOptions, ReduceOp

if hasattr(AllreduceOptions, "asyncOp"):
    is_asynchronous = operator.attrgetter("asyncOp")
else:  # an older PyTorch, which waits for the work that it gets

    def is_asynchronous(_):
        return True


def options(kind, given, op=None, root=None, timeout=None):
    """An options struct of this kind; ``given`` is one, an operation, a root or None."""
    if isinstance(given, kind):
        return given
    made = kind()
    if given is not None:
        if isinstance(given, int) and not isinstance(given, ReduceOp):
            root = given
        else:
            op = given
    if op is not None:
        made.reduceOp = op if isinstance(op, ReduceOp) else ReduceOp(op)
    if root is not None:
        made.rootRank = root
    if timeout is not None:
        made.timeout = timeout
    return made


def only(tensors, name):
    """The one tensor of a list, or the tensor itself."""
    if isinstance(tensors, (list, tuple)):
        if len(tensors) != 1:
            raise ValueError(f"{name}: expected one tensor, got a list of {len(tensors)}")
        return tensors[0]
    return tensors


def root_of(group, opts, name):
    """The job's rank of the root that the options name; ValueError: it is no member."""
    root = opts.rootRank
    if not 0 <= root < group._size:
        raise ValueError(
            f"{name}: invalid root rank {root}: the group has ranks 0 to {group._size - 1}"
        )
    return group._ranks[root]
