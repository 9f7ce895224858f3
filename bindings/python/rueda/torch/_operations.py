"""Operations of graphs: how a function becomes one, and what those of all collectives share.

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

from rueda import _waiting
from rueda.common.process_sets import registered, require_registered
from rueda.torch import _selections
from rueda.torch._selections import SELECTIONS

_library = torch.library.Library("rueda", "DEF")


def operation(schema, fake, gradient=None, setup=None):
    """Registers a function as the operation of its own name. ``fake`` says what its results look like."""

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
        made = getattr(torch.ops.rueda, name).default
        _register_effectful_op(made, _EffectType.ORDERED)
        return made

    return register


def collective(arguments, fake, gradients, hidden=0, kept=False):
    """Registers a forward operation, of a tensor or, with "Tensor[] tensors", of several.

    Parameters
    ----------
    arguments : str
        As in a schema; the result is a tensor or, of several tensors or with ``kept``, a list.
    gradients : callable
        (ctx, list of the results' gradients) -> list of the tensors'. In ``ctx`` are ``arguments``, all behind
        the tensor and the ``hidden`` ones, and ``rows``, of each tensor.
    kept : bool
        Whether the last result is for the backward alone, in ``ctx.saved_tensors``. Without, these have
        tensors and results of an ``op`` that selects.
    """
    names = [argument.split()[-1] for argument in arguments.split(", ")]
    grouped = names[0] == "tensors"

    def setup(ctx, inputs, output):
        tensors = inputs[0] if grouped else [inputs[0]]
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.arguments = inputs[1 + hidden :]
        if kept:
            ctx.save_for_backward(output[-1])
            ctx.mark_non_differentiable(output[-1])
        elif "op" in names and inputs[names.index("op")] in SELECTIONS:
            ctx.save_for_backward(*tensors, *(output if grouped else [output]))

    def gradient(ctx, grads):
        if kept:
            grads = grads[:-1]
        own = gradients(ctx, grads if grouped or kept else [grads])
        return (own if grouped else own[0], *[None] * (len(names) - 1))

    result = "Tensor[]" if grouped or kept else "Tensor"
    return operation(f"({arguments}) -> {result}", fake, gradient, setup)


# What results look like.


def like(tensor, *_):
    return tensor.new_empty(tensor.shape)


def all_like(tensors, *_):
    return [like(tensor) for tensor in tensors]


def with_rows(tensor, rows, *_):
    return tensor.new_empty((rows,) + tuple(tensor.shape[1:]))


def all_with_rows(tensors, rows, *_):
    return [with_rows(tensor, count) for tensor, count in zip(tensors, rows)]


def gathered(tensor, *_):
    return all_gathered([tensor])


def all_gathered(tensors, *_):
    """With rows that only running tells, and this rank's first row in each."""
    firsts = torch.empty(len(tensors), dtype=torch.int64)
    return [*(with_rows(t, torch.library.get_ctx().new_dynamic_size()) for t in tensors), firsts]


def exchanged(tensor, splits, size, *_):
    rows = torch.library.get_ctx().new_dynamic_size()
    return [with_rows(tensor, rows), torch.empty(size, dtype=torch.int32)]


# Gradients.


@operation(
    "(Tensor[] grads, Tensor[] inputs, Tensor[] results, int op, str? name, int set_id) -> Tensor[]",
    all_like,
)
def _selection_backward(grads, inputs, results, op, name, set_id):
    return _selections.gradients(grads, inputs, results, op, name, registered(set_id))


def selected(ctx, grads):
    """Those of a reduction that selects; None of any other."""
    if not ctx.saved_tensors:
        return None
    count, (name, set_id, op, *_) = len(grads), ctx.arguments
    inputs, results = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
    return _selection_backward(grads, inputs, results, op, name, set_id)


# What stands in a graph for arguments.


def id_in_graph(process_set):
    """What stands for a process set; the graph is checked against it when entered."""
    require_registered(process_set)
    return process_set.process_set_id


def as_tensor(splits):
    if splits is None or isinstance(splits, torch.Tensor):
        return splits
    return torch.tensor(splits, dtype=torch.int32)


def rows_of_this_rank(tensor, process_set):
    """Of a reducescatter: as even as possible, the first ranks get more."""
    rows = tensor.shape[0] if tensor.dim() else 0  # without rows it is refused when it runs
    return (rows + process_set.size() - 1 - process_set.rank()) // process_set.size()


def require_compiled_for(actual, expected):
    if actual != expected:
        raise RuntimeError(
            f"compiled for other ranks than this job has (rows or ranks: {expected} compiled, "
            f"{actual} now): call torch.compiler.reset() after init()"
        )


# Results in memory that was there before.


def write_back(tensor, result):
    """For operations in place; as without a compiler, autograd does not see them."""
    tensor.detach().copy_(result.detach())
    return tensor


def give(result, out, tensor):
    """The result of ``tensor``, in ``out`` if there is one."""
    if out is None:
        return result
    if torch.is_grad_enabled() and (tensor.requires_grad or out.requires_grad):
        raise RuntimeError("out= has no gradient, but the tensor or out requires one")
    if out.dtype != result.dtype or out.shape != result.shape or not out.is_contiguous():
        raise ValueError("out must be like the result")  # the graph ends, and the call says more
    return write_back(out, result)


# Without tensors.


@operation("(int set_id) -> ()", lambda set_id: None)
def _barrier(set_id):
    _waiting.barrier(registered(set_id))


def barrier(process_set):
    _barrier(id_in_graph(process_set))
