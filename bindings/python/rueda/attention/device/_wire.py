"""Keys and values in a message: as they are, as bfloat16, or as int8 with a scale for each row and head, as on the CPU."""

import torch

_LARGEST = 127.0


def quantise(x, numbers, scales):
    """x (batch, rows, heads, head_dim) into int8 numbers and (batch, rows, heads) scales."""
    x = x.float()
    largest = x.abs().amax(-1)
    scales.copy_(largest / _LARGEST)
    # The smallest denormals have no inverse; a block of them is zeros.
    inverse = torch.where(largest > 1e-36, _LARGEST / largest, torch.zeros_like(largest))
    numbers.copy_((x * inverse[..., None]).round_().clamp_(-_LARGEST, _LARGEST))


def dequantise(numbers, scales, into):
    into.copy_(numbers.float() * scales[..., None])
