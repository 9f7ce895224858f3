"""Gradients of a step that may be repeated with other ranks: they stay as backward left them until all results are there.

A result lies in memory of its own, and takes the gradient's place when the ranks have voted (`rueda.elastic._points`);
the gradient's memory is the next result's. What cannot be started because a rank was lost is started again later.
"""

import sys

import torch

from rueda.common import basics
from rueda.common.exceptions import HorovodInternalError
from rueda.torch import _async
from rueda.torch._policies import Dense, DenseOrSparse, Policy, Sparse, dense, write_gradient
from rueda.torch._reduction import Reduction
from rueda.torch._sparse import coo_tensor, sparse_allreduce_async
from rueda.torch._tensors import is_plain


class Tolerant(Policy):
    """Another policy, whose losses of ranks are told when the results are waited for."""

    def __init__(self, policy):
        super().__init__(policy.settings)
        self._policy = policy
        self.supply, self.agree, self.adopt = policy.supply, policy.agree, policy.adopt

    def use(self, replicas):
        """Whose gradients count (`rueda.elastic._replicas`)."""
        self.replicas = replicas
        both = isinstance(self._policy, DenseOrSparse)
        for policy in (self._policy._dense, self._policy._sparse) if both else (self._policy,):
            policy.replicas = replicas

    def start(self, gradients, name):
        try:
            return self._policy.start(gradients, name)
        except HorovodInternalError as error:
            return _Failed(gradients, error)


class _Failed(Reduction):
    """One that could not be started."""

    def __init__(self, gradients, error):
        super().__init__(gradients, [], None)
        self._error = error

    def wait(self):
        raise self._error


class Apart(Dense):
    """As `Dense`, but results lie elsewhere."""

    replicas = None  # whose gradients count

    def start(self, gradients, name):
        settings, is_left_out = _of_those_that_count(self.settings, self.replicas)
        wires, contexts, are_gradients = [], [], []
        for gradient in gradients:
            grad = dense(gradient.parameter.grad)
            wire, context = settings.compression.compress(grad)
            wires.append(torch.zeros_like(wire).contiguous() if is_left_out else wire.contiguous())
            contexts.append(context)
            are_gradients.append(wires[-1].data_ptr() == grad.data_ptr())
        arguments = None, settings.prefix + name, settings.op, *settings[1:4]
        if len(gradients) == 1:
            target = _room(gradients[0], wires[0]) if are_gradients[0] else wires[0]
            handle = _async.allreduce_async(wires[0], *arguments, out=target)
        else:
            handle = _async.grouped_allreduce_async(wires, *arguments)

        def write(results):
            for gradient, result, context in zip(gradients, results if len(gradients) > 1 else [results], contexts):
                _take(gradient, settings.compression.decompress(result, context))

        return Reduction(gradients, [handle], write)


class SparseApart(Sparse):
    """As `Sparse`, of those that count."""

    replicas = None

    def start(self, gradients, name):
        (gradient,) = gradients
        settings, is_left_out = _of_those_that_count(self.settings, self.replicas)
        grad = gradient.parameter.grad.detach()
        sent = coo_tensor(grad._indices()[:, :0], grad._values()[:0], grad.shape) if is_left_out else grad
        result = sparse_allreduce_async(sent, settings.prefix + name, settings.op, settings.process_set)
        divisor = 1 if settings is self.settings or self.settings.op == basics.Sum else self.replicas.ranks

        def write(indices, values):
            gradient.parameter.grad = result.combine(indices, values / divisor if divisor > 1 else values)

        return Reduction(gradients, result.handles, write)


def _of_those_that_count(settings, replicas):
    """Settings with the divisor of the ranks whose gradients count, and whether this one's do not."""
    if replicas is None or not replicas.left_out:
        return settings, False
    if settings.op == basics.Average:
        settings = settings._replace(op=basics.Sum, postscale=settings.postscale / replicas.ranks)
    return settings, not replicas.counts


def tolerant(policy):
    """Another policy of that kind, whose steps may be repeated; None where they cannot be."""
    inner = policy._dense if type(policy) is DenseOrSparse else policy
    if type(inner) is not Dense:
        return None
    apart = Apart(policy.settings)
    if inner is policy:
        return Tolerant(apart)
    either = DenseOrSparse(apart)
    either._sparse = SparseApart(policy.settings)
    return Tolerant(either)


def results(reductions, replicas):
    """Waits for all of them. Returns how many contributions are in them."""
    for reduction in reductions:
        reduction.wait()
    return replicas.contributors()


def enter_epoch(step, gradients):
    """The ranks have changed, and the step under way goes on: what was being reduced is reduced again."""
    pending, step.pending = step.pending, []
    for reduction in pending:
        reduction.let_go()
    for gradient in gradients:
        gradient.is_sparse = None


def _room(gradient, wire):
    """Memory for a result: the one kept for it, unless somebody else looks at it."""
    spare, gradient.spare = gradient.spare, None
    fits = spare is not None and spare.shape == wire.shape and spare.dtype == wire.dtype and spare.device == wire.device
    if fits and sys.getrefcount(spare) == _REFERENCES and spare.is_contiguous():
        return spare
    return torch.empty_like(wire, memory_format=torch.contiguous_format)


def _references():
    spare = torch.zeros(1)
    return sys.getrefcount(spare)


_REFERENCES = _references()


def _take(gradient, result):
    """A result takes the gradient's place, if that is a tensor for itself; else its values do."""
    p = gradient.parameter
    local = p.grad
    alone = is_plain(local) and is_plain(result) and not local._is_view() and result.dtype == local.dtype
    if not alone or result.stride() != local.stride() or result.shape != local.shape:
        write_gradient(p, result)
        return
    p.grad = result
    gradient.spare = local
