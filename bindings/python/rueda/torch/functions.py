"""Broadcasting what a training job consists of: parameters, optimizer state, Python objects."""

import torch

from rueda._objects import allgather_object, broadcast_bytes, broadcast_object, named  # noqa: F401
from rueda.common.process_sets import global_process_set
from rueda.torch import mpi_ops
from rueda.torch._outline import Outline
from rueda.torch._plain import same_objects
from rueda.torch.sharding import Sharded
from rueda.torch.sharding._whole import is_away


def require_materialized(name, tensor):
    """ValueError for a parameter of a lazy module that has no shape yet."""
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(
            f"{name!r} has no shape yet, because its module is lazy: run one batch through the model "
            "on every rank first"
        )


def whole_tensors(params):
    """(name, tensor) of what `broadcast_parameters` broadcasts."""
    for name, tensor in named(params):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"broadcast_parameters: {name!r} is not a tensor but {type(tensor).__name__}; "
                "leave it out, or use broadcast_object"
            )
        require_materialized(name, tensor)
        if not is_away(tensor):
            yield name, tensor


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Broadcasts tensors in place from ``root_rank``.

    Those of a model whose parameters are sharded (``shard="parameters"``) are passed over: each rank has its share
    of the first rank's since that was made.

    Parameters
    ----------
    params : mapping, iterable of pairs, or list
        ``model.state_dict()``, (name, tensor) pairs such as ``model.named_parameters()``, or a list of
        tensors. All ranks pass the same names or order.
    root_rank : int
        A rank of the job, member of ``process_set``.
    process_set : ProcessSet
        The ranks that take part; only they may call this.
    """
    pending = []
    for name, tensor in whole_tensors(params):
        # In place needs packed memory; anything else goes through a packed copy.
        packed = tensor.detach()
        if not packed.is_contiguous():
            packed = packed.contiguous()
        handle = mpi_ops.broadcast_async_(packed, root_rank, name, process_set)
        pending.append((handle, tensor, packed))
    for handle, tensor, packed in pending:
        mpi_ops.synchronize(handle)
        if packed.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(packed)


def broadcast_optimizer_state(
    optimizer, root_rank, model=None, process_set=global_process_set
):
    """Gives every rank the optimizer state and options of ``root_rank``.

    Numbers, flags and tuples arrive as they were; tensors travel as tensors. A state that is still
    empty on the root (no step taken) arrives empty: unlike Horovod, no step is taken to fill it.
    Options are set in the groups that are there, so that schedulers made before go on to rule them.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        LBFGS is refused with ValueError: its state is lists of tensors that grow as it steps. A sharded one
        gets the options only.
    model : torch.nn.Module, optional
        Not needed; accepted because Horovod has it.
    process_set : ProcessSet
        The ranks that take part; only they may call this.
    """
    spread_optimizer_state(
        optimizer, root_rank, process_set, lambda tensors: broadcast_parameters(tensors, root_rank, process_set)
    )


def spread_optimizer_state(optimizer, root_rank, process_set, spread, in_place=False, room=()):
    """`broadcast_optimizer_state`, whose tensors travel as ``spread([(name, tensor), ...])`` sees to it.

    ``in_place``: into those that the optimizer has, where they fit; an error leaves them half new. ``room``: tensors for what
    it has none for, in the order of the state dict.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "cannot broadcast the state of torch.optim.LBFGS: give all ranks the same parameters "
            "(broadcast_parameters) and make it anew, or send a checkpoint's state_dict() with "
            "broadcast_object and load it on every rank"
        )

    if isinstance(optimizer, Sharded):  # each rank has its share of the state, and nobody else has it
        options = broadcast_object(optimizer.options(), root_rank, "optimizer_options", process_set)
        optimizer.set_options(options)
        return
    outline = Outline(optimizer)
    is_root = mpi_ops.rank() == root_rank
    data = broadcast_bytes(outline.read, root_rank, "optimizer_state", process_set)
    if not is_root:
        if in_place:
            outline.read()
        outline.tensors += room[len(outline.tensors) :]
        state = outline.fill(data)
    spread([(f"optimizer_state.{i}", each) for i, each in enumerate(outline.tensors)])
    if not is_root:
        with same_objects(optimizer):
            optimizer.load_state_dict(state)
