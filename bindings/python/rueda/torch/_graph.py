"""The differentiable collectives as operations of a graph, for torch.compile.

Inside compiled code the public functions call the functions at the end of this file, which have the
signatures of `_autograd`'s. Each is one operation ``torch.ops.rueda.*``: PyTorch knows its shapes
(the fake kernels) and its gradient, and runs at its place what `_async` runs without a compiler.

* **Order.** Every operation is registered as an ordered effect: PyTorch threads a token through
  them, so that a graph runs them as the program wrote them, and none is removed because its result
  is not used: another rank may wait for it.
* **Values.** All operations are functional. Those in place copy the result back, because PyTorch
  threads no token through operations that change their arguments.
* **Lists.** An operation with several results returns a list: with a tuple, inductor (2.13) looks
  for an unknown size in the wrong result when there is a token.
* **Sizes that depend on other ranks** are unknown until the operation has run (unbacked sizes).
"""

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from rueda import _collectives
from rueda._ffi import ALLREDUCE, BROADCAST
from rueda.common import basics
from rueda.common.process_sets import registered, require_registered
from rueda.torch import _async, _autograd, _selections
from rueda.torch._again import run_again
from rueda.torch._async import synchronize
from rueda.torch._selections import SELECTIONS, scaled

_library = torch.library.Library("rueda", "DEF")


def _operation(schema, fake, gradient=None, setup=None):
    """Registers a function as the operation of its own name."""

    def register(function):
        name = function.__name__.strip("_")
        qualified = "rueda::" + name
        _library.define(name + schema)
        # For every backend, so that what rueda cannot take is refused in rueda's words.
        _library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, fake, lib=_library)
        if gradient is not None:
            torch.library.register_autograd(
                qualified, gradient, setup_context=setup, lib=_library
            )
        operation = getattr(torch.ops.rueda, name).default
        _register_effectful_op(operation, _EffectType.ORDERED)
        return operation

    return register


# Shapes.


def _like(tensor, *_):
    return tensor.new_empty(tensor.shape)


def _all_like(tensors, *_):
    return [_like(tensor) for tensor in tensors]


def _with_rows(tensor, rows):
    return tensor.new_empty((rows,) + tuple(tensor.shape[1:]))


def _some_rows(tensor, *_):
    return _with_rows(tensor, torch.library.get_ctx().new_dynamic_size())


def _all_with_rows(tensors, rows, *_):
    return [_with_rows(tensor, count) for tensor, count in zip(tensors, rows)]


# Gradients: ``setup`` keeps arguments, ``gradient`` returns one entry for each of them.


def _keep_arguments(ctx, inputs):
    _, ctx.name, ctx.set_id, *ctx.rest = inputs
    return ctx.rest[0] in SELECTIONS


def _allreduce_setup(ctx, inputs, output):
    if _keep_arguments(ctx, inputs):
        ctx.save_for_backward(inputs[0], output)


def _grouped_allreduce_setup(ctx, inputs, output):
    if _keep_arguments(ctx, inputs):
        ctx.save_for_backward(*inputs[0], *output)


def _of_selection(ctx, grads):
    count, saved = len(grads), ctx.saved_tensors
    return _selection_backward(grads, saved[:count], saved[count:], ctx.rest[0], ctx.name, ctx.set_id)


def _allreduce_gradient(ctx, grad):
    if ctx.saved_tensors:
        own = _of_selection(ctx, [grad])[0]
    else:
        own = _allreduce(grad, _async.backward_name(ctx.name), ctx.set_id, *ctx.rest)
    return own, None, None, None, None, None


def _grouped_allreduce_gradient(ctx, grads):
    if ctx.saved_tensors:
        own = _of_selection(ctx, grads)
    else:
        own = _grouped_allreduce(grads, _async.backward_name(ctx.name), ctx.set_id, *ctx.rest)
    return own, None, None, None, None, None


@_operation(
    "(Tensor[] grads, Tensor[] inputs, Tensor[] results, int op, str? name, int set_id) -> Tensor[]",
    _all_like,
)
def _selection_backward(grads, inputs, results, op, name, set_id):
    return _selections.gradients(grads, inputs, results, op, name, registered(set_id))


@_operation(
    "(Tensor tensor, str? name, int set_id, int op, float prescale, float postscale) -> Tensor",
    _like,
    _allreduce_gradient,
    _allreduce_setup,
)
def _allreduce(tensor, name, set_id, op, *scales):
    tensor, process_set = tensor.detach(), registered(set_id)
    result = run_again(ALLREDUCE, name, tensor, False, op, *scales, process_set.key)
    if result is not None:
        return result
    return synchronize(_async.allreduce_async(tensor, None, name, op, *scales, process_set))


@_operation(
    "(Tensor[] tensors, str? name, int set_id, int op, float prescale, float postscale) -> Tensor[]",
    _all_like,
    _grouped_allreduce_gradient,
    _grouped_allreduce_setup,
)
def _grouped_allreduce(tensors, name, set_id, op, *scales):
    arguments = None, name, op, *scales, registered(set_id)
    handle = _async.grouped_allreduce_async(tensors, *arguments)
    return list(synchronize(handle))


@_operation("(Tensor[] grads, SymInt[] rows, str? name, int set_id) -> Tensor[]", _all_with_rows)
def _allgather_backward(grads, rows, name, set_id):
    # Slices are views; an operation's results must be tensors of their own.
    mine = _autograd.allgather_gradients(grads, rows, name, registered(set_id))
    return [grad.clone() for grad in mine]


def _allgather_setup(ctx, inputs, output):
    tensor, ctx.name, ctx.set_id = inputs
    ctx.rows = tensor.shape[0]


def _grouped_allgather_setup(ctx, inputs, output):
    tensors, ctx.name, ctx.set_id = inputs
    ctx.rows = [tensor.shape[0] for tensor in tensors]


def _allgather_gradient(ctx, grad):
    return _allgather_backward([grad], [ctx.rows], ctx.name, ctx.set_id)[0], None, None


def _grouped_allgather_gradient(ctx, grads):
    return _allgather_backward(grads, ctx.rows, ctx.name, ctx.set_id), None, None


@_operation(
    "(Tensor tensor, str? name, int set_id) -> Tensor", _some_rows, _allgather_gradient, _allgather_setup
)
def _allgather(tensor, name, set_id):
    return synchronize(_async.allgather_async(tensor, name, registered(set_id)))


@_operation(
    "(Tensor[] tensors, str? name, int set_id) -> Tensor[]",
    lambda tensors, *_: [_some_rows(tensor) for tensor in tensors],
    _grouped_allgather_gradient,
    _grouped_allgather_setup,
)
def _grouped_allgather(tensors, name, set_id):
    handle = _async.grouped_allgather_async(tensors, name, registered(set_id))
    return list(synchronize(handle))


@_operation("(Tensor grad, int root_rank, str? name, int set_id) -> Tensor", _like)
def _broadcast_backward(grad, root_rank, name, set_id):
    return _autograd.broadcast_gradient(grad, root_rank, name, registered(set_id))


def _broadcast_setup(ctx, inputs, output):
    _, *ctx.rest = inputs


def _broadcast_gradient(ctx, grad):
    return _broadcast_backward(grad, *ctx.rest), None, None, None


@_operation(
    "(Tensor tensor, int root_rank, str? name, int set_id) -> Tensor",
    _like,
    _broadcast_gradient,
    _broadcast_setup,
)
def _broadcast(tensor, root_rank, name, set_id):
    tensor, process_set = tensor.detach(), registered(set_id)
    result = run_again(BROADCAST, name, tensor, False, root_rank, process_set.key)
    if result is not None:
        return result
    return synchronize(_async.broadcast_async(tensor, root_rank, name, process_set))


@_operation(
    "(Tensor grad, Tensor received, SymInt rows, str? name, int set_id) -> Tensor",
    lambda grad, received, rows, *_: _with_rows(grad, rows),
)
def _alltoall_backward(grad, received, rows, name, set_id):
    return _autograd.alltoall_gradient(grad, received, rows, name, registered(set_id))


def _alltoall_setup(ctx, inputs, output):
    tensor, _, _, *ctx.rest = inputs
    ctx.rows = tensor.shape[0]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _alltoall_gradient(ctx, grads):
    (received,) = ctx.saved_tensors
    own = _alltoall_backward(grads[0], received, ctx.rows, *ctx.rest)
    return own, None, None, None, None


@_operation(
    "(Tensor tensor, Tensor? splits, int size, str? name, int set_id) -> Tensor[]",
    lambda tensor, splits, size, *_: [
        _some_rows(tensor),
        torch.empty(size, dtype=torch.int32),
    ],
    _alltoall_gradient,
    _alltoall_setup,
)
def _alltoall(tensor, splits, size, name, set_id):
    handle = _async.alltoall_async(tensor, splits, name, registered(set_id))
    output, received = synchronize(handle)
    _require_compiled_for(received.shape[0], size)
    return [output, received]


@_operation(
    "(Tensor[] grads, SymInt[] rows, int op, float prescale, float postscale, str? name, int set_id) "
    "-> Tensor[]",
    _all_with_rows,
)
def _reducescatter_backward(grads, rows, op, prescale, postscale, name, set_id):
    arguments = op, prescale, postscale, name, registered(set_id)
    return list(_autograd.reducescatter_gradients(grads, *arguments))


def _reducescatter_setup(ctx, inputs, output):
    tensor, _, ctx.name, ctx.set_id, *ctx.rest = inputs
    ctx.rows = tensor.shape[0]


def _grouped_reducescatter_setup(ctx, inputs, output):
    tensors, _, ctx.name, ctx.set_id, *ctx.rest = inputs
    ctx.rows = [tensor.shape[0] for tensor in tensors]


def _reducescatter_gradient(ctx, grad):
    grads = _reducescatter_backward([grad], [ctx.rows], *ctx.rest, ctx.name, ctx.set_id)
    return grads[0], None, None, None, None, None, None


def _grouped_reducescatter_gradient(ctx, grads):
    grads = _reducescatter_backward(grads, ctx.rows, *ctx.rest, ctx.name, ctx.set_id)
    return grads, None, None, None, None, None, None


@_operation(
    "(Tensor tensor, SymInt rows, str? name, int set_id, int op, float prescale, float postscale) -> Tensor",
    lambda tensor, rows, *_: _with_rows(tensor, rows),
    _reducescatter_gradient,
    _reducescatter_setup,
)
def _reducescatter(tensor, rows, name, set_id, op, *scales):
    handle = _async.reducescatter_async(tensor, name, op, registered(set_id), *scales)
    output = synchronize(handle)
    _require_compiled_for(output.shape[0], rows)
    return output


@_operation(
    "(Tensor[] tensors, SymInt[] rows, str? name, int set_id, int op, float prescale, float postscale) "
    "-> Tensor[]",
    _all_with_rows,
    _grouped_reducescatter_gradient,
    _grouped_reducescatter_setup,
)
def _grouped_reducescatter(tensors, rows, name, set_id, op, *scales):
    arguments = name, op, registered(set_id), *scales
    handle = _async.grouped_reducescatter_async(tensors, *arguments)
    outputs = synchronize(handle)
    _require_compiled_for([output.shape[0] for output in outputs], list(rows))
    return list(outputs)


@_operation("(int set_id) -> ()", lambda set_id: None)
def _barrier(set_id):
    _collectives.barrier(registered(set_id))


def _require_compiled_for(actual, expected):
    if actual != expected:
        raise RuntimeError(
            f"compiled for other ranks than this job has (rows or ranks: {expected} compiled, "
            f"{actual} now): call torch.compiler.reset() after init()"
        )


# What the public functions call inside compiled code.


def _id(process_set):
    """What stands for a process set in the graph; the graph is checked against it when entered."""
    require_registered(process_set)
    return process_set.process_set_id


def allreduce(tensor, name, op, prescale, postscale, process_set):
    to = name, _id(process_set), op
    if op in SELECTIONS and tensor.requires_grad:
        return scaled(_allreduce(scaled(tensor, prescale), *to, 1.0, 1.0), postscale)
    return _allreduce(tensor, *to, prescale, postscale)


def grouped_allreduce(tensors, name, op, prescale, postscale, process_set):
    tensors, to = list(tensors), (name, _id(process_set), op)
    if op in SELECTIONS and any(tensor.requires_grad for tensor in tensors):
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        results = _grouped_allreduce(tensors, *to, 1.0, 1.0)
        return tuple(scaled(result, postscale) for result in results)
    return tuple(_grouped_allreduce(tensors, *to, prescale, postscale))


def allgather(tensor, name, process_set):
    return _allgather(tensor, name, _id(process_set))


def grouped_allgather(tensors, name, process_set):
    return tuple(_grouped_allgather(list(tensors), name, _id(process_set)))


def broadcast(tensor, root_rank, name, process_set):
    return _broadcast(tensor, root_rank, name, _id(process_set))


def alltoall(tensor, splits, name, process_set):
    set_id = _id(process_set)
    if splits is not None and not isinstance(splits, torch.Tensor):
        splits = torch.tensor(splits, dtype=torch.int32)
    output, received = _alltoall(tensor, splits, process_set.size(), name, set_id)
    return output, received


def _own_rows(tensor, process_set):
    """Rows that a reducescatter gives this rank: as even as possible, the first ranks get more."""
    rows = tensor.shape[0] if tensor.dim() else 0  # without rows it is refused when it runs
    return (rows + process_set.size() - 1 - process_set.rank()) // process_set.size()


def reducescatter(tensor, name, op, process_set, *scales):
    set_id = _id(process_set)
    rows = _own_rows(tensor, process_set)
    return _reducescatter(tensor, rows, name, set_id, op, *scales)


def grouped_reducescatter(tensors, name, op, process_set, *scales):
    set_id, tensors = _id(process_set), list(tensors)
    rows = [_own_rows(tensor, process_set) for tensor in tensors]
    return tuple(_grouped_reducescatter(tensors, rows, name, set_id, op, *scales))


def barrier(process_set):
    _barrier(_id(process_set))


def write_back(tensor, result):
    """For operations in place; as without a compiler, autograd does not see them."""
    tensor.detach().copy_(result.detach())
    return tensor
