"""Batch normalization with the statistics of all ranks' batches together.

Forward: each rank reduces its batch to count, mean and sum of squared deviations per channel; the
ranks gather these 2 C + 1 numbers and combine them pairwise in rank order (Chan, Golub, LeVeque
1979), so all have the same bits, also when batches differ in size or are empty. Backward: two sums
per channel are added over the ranks. One small collective each way per layer.

Gradients are those of the sum of all ranks' losses, with the weight's and bias's own part left on
each rank: `DistributedOptimizer` averages these as any other parameter's.
"""

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from rueda import _replay
from rueda.common.process_sets import global_process_set
from rueda.torch._tensors import blocking


def _per_channel(vector, x):
    return vector.reshape((1, -1) + (1,) * (x.dim() - 2))


def _gather(vector, name, process_set):
    """One row per rank, float64 on the CPU, wherever the vector lies: there are few numbers."""
    row = vector.to("cpu", torch.float64)[None]
    return blocking.allgather(row, name, process_set)


def _statistics(x):
    """Count, means and sums of squared deviations as one vector."""
    channels, dims = x.shape[1], [d for d in range(x.dim()) if d != 1]
    count = x.numel() // channels if channels else 0
    if count == 0:
        return x.new_zeros(2 * channels + 1)
    variance, mean = torch.var_mean(x, dims, unbiased=False)
    return torch.cat([x.new_tensor([count], dtype=torch.float64), mean, variance * count])


def _combine(rows):
    """Count, mean and sum of squared deviations of everything."""
    channels = (rows.shape[1] - 1) // 2
    total, mean, squares = 0, rows.new_zeros(channels), rows.new_zeros(channels)
    for count, row in zip(rows[:, 0].tolist(), rows):
        if count:
            delta = row[1 : channels + 1] - mean
            share = count / (total + count)
            mean = mean + delta * share
            squares = squares + row[channels + 1 :] + delta * delta * (total * share)
            total += int(count)
    return total, mean, squares


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, mean, variance, eps, count, process_set):
        invstd = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.count, ctx.process_set = count, process_set
        wide = [v if v is None else v.to(mean.dtype) for v in (weight, bias)]
        y = F.batch_norm(x.to(mean.dtype), mean, variance, *wide, False, 0.0, eps)
        return y.to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight, mean, invstd = ctx.saved_tensors
        dims = [d for d in range(x.dim()) if d != 1]
        wide = grad.to(mean.dtype)
        centred = x.to(mean.dtype) - _per_channel(mean, x)
        own = torch.stack([wide.sum(dims), (wide * centred).sum(dims)])
        name = f"sync_batch_norm.{x.shape[1]}.backward"
        total = _gather(own.flatten(), name, ctx.process_set).sum(0).reshape(2, -1) / ctx.count
        total = total.to(own)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            slope = total[1] * invstd * invstd
            scale = invstd if weight is None else invstd * weight.to(mean.dtype)
            grad_x = wide - _per_channel(total[0], x) - centred * _per_channel(slope, x)
            grad_x = (grad_x * _per_channel(scale, x)).to(x.dtype)
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = (own[1] * invstd).to(weight.dtype)
        if weight is not None and ctx.needs_input_grad[2]:
            grad_bias = own[0].to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None, None, None


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm*d`` over the batches of all ranks.

    In training the ranks must reach it in the same order, each with any number of samples. In
    evaluation it is the plain layer. Input: (N, C, ...), at least two dimensions, on CPU or GPU;
    statistics of 16-bit floats are kept in float32.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats
        As in ``torch.nn.BatchNorm1d``.
    process_set : ProcessSet
        Whose ranks are normalized together.
    """

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        process_set=global_process_set,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"expected {self.num_features} channels in dimension 1, got {input.shape[1]}"
            )

    def forward(self, input):
        self._check_input_dim(input)
        if not self.training or self.process_set.size() == 1:
            return self._forward_alone(input)
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        with torch.no_grad():
            name = f"sync_batch_norm.{self.num_features}"
            rows = _gather(_statistics(input.detach().to(wide)), name, self.process_set)
            count, mean, squares = _combine(rows)
            if count <= 1:
                raise ValueError(
                    "Expected more than 1 value per channel over all ranks when training, got "
                    f"input size {tuple(input.shape)}"
                )
            if not _replay.repeats():
                self._track(count, mean, squares)
            mean, variance = (v.to(input.device, wide) for v in (mean, squares / count))
        return _Normalize.apply(
            input, self.weight, self.bias, mean, variance, self.eps, count, self.process_set
        )

    def _forward_alone(self, input):
        use_batch = self.training or self.running_mean is None
        if self.training and self.running_mean is not None:
            factor = self._next_factor()
        else:
            factor = 0.0
        return F.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            use_batch,
            factor,
            self.eps,
        )

    def _next_factor(self):
        """Counts a batch; the weight of its statistics in the running ones."""
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _track(self, count, mean, squares):
        if self.running_mean is not None:
            factor = self._next_factor()
            self.running_mean.lerp_(mean.to(self.running_mean), factor)
            self.running_var.lerp_((squares / (count - 1)).to(self.running_var), factor)

    @classmethod
    def convert_sync_batchnorm(cls, module, process_set=global_process_set):
        """Replaces every batch normalization in a module by a `SyncBatchNorm`.

        Parameters and buffers are taken over, not copied, so optimizers made before stay right.
        Returns the module, or its replacement if it is a batch normalization itself.
        """
        return cls._convert(module, process_set, {})

    @classmethod
    def _convert(cls, module, process_set, converted):
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            if module not in converted:
                converted[module] = cls._from(module, process_set)
            return converted[module]
        for name, child in list(module._modules.items()):
            if child is not None:
                module._modules[name] = cls._convert(child, process_set, converted)
        return module

    @classmethod
    def _from(cls, old, process_set):
        if isinstance(old, torch.nn.modules.lazy.LazyModuleMixin):
            raise ValueError(
                f"{type(old).__name__} does not know its channels yet: run a batch through the "
                "model before convert_sync_batchnorm"
            )
        new = cls(
            old.num_features,
            old.eps,
            old.momentum,
            affine=False,
            track_running_stats=old.track_running_stats,
            process_set=process_set,
        )
        new.affine, new.weight, new.bias = old.affine, old.weight, old.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(new, name, getattr(old, name))
        return new.train(old.training)


convert_sync_batchnorm = SyncBatchNorm.convert_sync_batchnorm
