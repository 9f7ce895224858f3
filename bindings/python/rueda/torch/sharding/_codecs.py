"""State in fewer bytes between steps: how a flat tensor of state is written and read.

    bf16   the upper 16 bits of float32
    int8   of 64 elements each, the largest magnitude s in float32 and a code c from -127 to 127 for each: sign(c) s (|c| / 127)^4,
           so that neighbours differ by 3 % next to the largest and the smallest is 4e-9 of it, as second moments need. What is not
           zero becomes no zero, because optimizers divide by it. A number that is none spoils its block.

Values are rounded up or down by chance, right on average, so that changes which are smaller than the distance of two codes
add up over steps instead of being lost, and no error has to be carried. Chance is a function of the number of the
rounding, the batch, the key and the element's place in its batch: runs repeat bit by bit, on any number of ranks. What was
written and read before stays as it is if it is written again with ``noise=None``.

Sources: Gupta et al., "Deep Learning with Limited Numerical Precision" (2015), for rounding; Dettmers et al., "8-bit Optimizers
via Block-wise Quantization" (2022), for blocks and for codes that are dense near zero.
"""

import zlib

import torch

from rueda._numpy import np
from rueda.torch.sharding import _pages

BLOCK = 64  # elements; shares begin at blocks
_SLICE = 1 << 14  # elements that are worked on at a time, in cache
_GOLDEN = 0x9E3779B1
_PLACES = np.arange(_SLICE // 2, dtype=np.uint32) * np.uint32(_GOLDEN)


def seed(rounding, batch, key):
    """Of the chance that one rounding of a batch's state ``key`` takes."""
    return zlib.crc32(f"{rounding} {batch} {key}".encode())


def _chance(first, count, noise):
    """16 bits for each of the elements from ``first`` on of a batch: murmur's last steps, of a pair's place and the seed."""
    bits = _PLACES[: count // 2] + np.uint32((first // 2 * _GOLDEN + noise) & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    bits ^= bits >> np.uint32(16)
    return bits.view(np.uint16)


def _level(code):
    """What codes mean, of the block's largest; the same operations wherever it is asked."""
    result = code / np.float32(127)
    result *= result
    result *= result
    return result


class Bf16:
    """Parts: the codes, a tensor of bfloat16."""

    name, bytes_each = "bf16", 2

    @staticmethod
    def takes(value):
        return value.dtype.is_floating_point and value.element_size() > 2

    @staticmethod
    def encode(value, first, noise):
        """Of the elements from ``first`` on of a batch."""
        if noise is None:
            return [value.to(torch.bfloat16)]
        result = _pages.flat(value.numel(), torch.bfloat16)
        target = result.view(torch.int16).numpy().view(np.uint16)
        for begin in range(0, value.numel(), _SLICE):
            part = value[begin : begin + _SLICE].float().numpy().view(np.uint32)
            magnitude = part & np.uint32(0x7FFFFFFF)
            rounded = magnitude + _chance(first + begin, len(part), noise)
            np.minimum(rounded, np.uint32(0x7F7FFFFF), out=rounded)
            if magnitude.max() >= np.uint32(0x7F800000):  # infinite, or no number
                bad = magnitude >= np.uint32(0x7F800000)
                rounded[bad] = np.where(magnitude[bad] > np.uint32(0x7F800000), np.uint32(0x7FC00000), np.uint32(0x7F800000))
            rounded |= part & np.uint32(0x80000000)
            rounded >>= np.uint32(16)
            target[begin : begin + len(part)] = rounded
        return [result]

    @staticmethod
    def decode(parts, dtype):
        return parts[0].to(dtype)


class Int8:
    """Parts: the codes, and the blocks' scales."""

    name, bytes_each = "int8", 1 + 4 / BLOCK

    @staticmethod
    def takes(value):
        return value.dtype.is_floating_point and value.element_size() > 1

    @staticmethod
    def encode(value, first, noise):
        count = value.numel()
        codes, scales = _pages.flat(count, torch.int8), _pages.flat(count // BLOCK, torch.float32)
        for begin in range(0, count, _SLICE):
            part = value[begin : begin + _SLICE].float().numpy()
            ratio = np.abs(part)
            blocks = ratio.reshape(-1, BLOCK)
            scale = blocks.max(axis=1)
            scales.numpy()[begin // BLOCK : begin // BLOCK + len(scale)] = scale
            usable = np.where((scale > 0) & np.isfinite(scale), scale, np.float32(1))
            blocks /= usable[:, None]
            if not np.isfinite(scale).all():
                ratio[~np.isfinite(ratio)] = 0
            code = np.sqrt(ratio)
            np.sqrt(code, out=code)
            code *= np.float32(127)
            np.floor(code, out=code)
            np.minimum(code, np.float32(126), out=code)
            low = _level(code)
            distance = _level(code + np.float32(1))
            distance -= low
            if noise is None:
                distance *= np.float32(0.5)
            else:
                distance *= _chance(first + begin, len(part), noise) * np.float32(2**-16)
            low += distance
            code += (ratio > low) | ((ratio > 0) & (code == 0))
            codes.numpy()[begin : begin + len(part)] = np.copysign(code, part)
        return [codes, scales]

    @staticmethod
    def decode(parts, dtype):
        codes, scales = parts[0].numpy(), parts[1].numpy()
        result = _pages.flat(len(codes), torch.float32)
        for begin in range(0, len(codes), _SLICE):
            part = codes[begin : begin + _SLICE].astype(np.float32)
            value = np.copysign(_level(part), part)
            blocks = result.numpy()[begin : begin + len(part)].reshape(-1, BLOCK)
            with np.errstate(invalid="ignore"):
                scale = scales[begin // BLOCK : begin // BLOCK + len(blocks)]
                np.multiply(value.reshape(-1, BLOCK), scale[:, None], out=blocks)
        return result.to(dtype)


def taken_apart(value):
    """The tensors that a tensor is made of, as torchao's are, and what puts them together; else itself."""
    if type(value) is torch.Tensor:
        return [value], None
    names, context = value.__tensor_flatten__()
    return [getattr(value, name) for name in names], (names, context, value.shape, value.stride())


def put_together(kind, parts, form):
    if form is None:
        return parts[0]
    names, context, shape, stride = form
    return kind.__tensor_unflatten__(dict(zip(names, parts)), context, shape, stride)


CODECS = {codec.name: codec for codec in (Bf16, Int8)}
