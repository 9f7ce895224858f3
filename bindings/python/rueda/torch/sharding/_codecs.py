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

BLOCK = 64  # elements; shares begin at blocks
_SLICE = 1 << 16  # elements that are worked on at a time, in cache
_LEVELS = (np.arange(129, dtype=np.float32) / np.float32(127)) ** 2
_LEVELS = np.minimum(_LEVELS * _LEVELS, np.float32(1.0))  # what codes 0 to 127 mean, and one more for the last's neighbour


def seed(rounding, batch, key):
    """Of the chance that one rounding of a batch's state ``key`` takes."""
    return zlib.crc32(f"{rounding} {batch} {key}".encode())


def _chance(first, count, noise):
    """24 bits for each of the elements from ``first`` on of a batch: murmur's last step, of a place and the seed."""
    bits = np.arange(first, first + count, dtype=np.uint64).astype(np.uint32)
    bits *= np.uint32(0x9E3779B1)
    bits ^= np.uint32(noise)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    bits ^= bits >> np.uint32(16)
    return bits >> np.uint32(8)


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
        result = torch.empty(value.numel(), dtype=torch.bfloat16)
        target = result.view(torch.int16).numpy().view(np.uint16)
        for begin in range(0, value.numel(), _SLICE):
            part = value[begin : begin + _SLICE].float().numpy().view(np.uint32)
            magnitude = part & np.uint32(0x7FFFFFFF)
            rounded = np.minimum(magnitude + (_chance(first + begin, len(part), noise) >> np.uint32(8)), np.uint32(0x7F7FFFFF))
            bad = magnitude >= np.uint32(0x7F800000)  # infinite, or no number
            rounded[bad] = np.where(magnitude[bad] > np.uint32(0x7F800000), np.uint32(0x7FC00000), np.uint32(0x7F800000))
            target[begin : begin + len(part)] = (rounded | (part & np.uint32(0x80000000))) >> np.uint32(16)
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
        codes, scales = torch.empty(count, dtype=torch.int8), torch.empty(count // BLOCK, dtype=torch.float32)
        for begin in range(0, count, _SLICE):
            part = value[begin : begin + _SLICE].float().numpy()
            magnitude = np.abs(part).reshape(-1, BLOCK)
            scale = magnitude.max(axis=1)
            scales.numpy()[begin // BLOCK : begin // BLOCK + len(scale)] = scale
            usable = np.where((scale > 0) & np.isfinite(scale), scale, np.float32(1))
            with np.errstate(invalid="ignore"):
                ratio = (magnitude / usable[:, None]).reshape(-1)
            ratio[~np.isfinite(ratio)] = 0
            code = np.minimum(np.sqrt(np.sqrt(ratio)) * np.float32(127), np.float32(126)).astype(np.uint8)
            low = _LEVELS[code]
            at = (ratio - low) / (_LEVELS[code + np.uint8(1)] - low)
            chance = np.float32(0.5) if noise is None else _chance(first + begin, len(part), noise) * np.float32(2**-24)
            code += at > chance
            np.maximum(code, ratio > 0, out=code)
            codes.numpy()[begin : begin + len(part)] = np.where(np.signbit(part), -code.astype(np.int8), code.astype(np.int8))
        return [codes, scales]

    @staticmethod
    def decode(parts, dtype):
        codes, scales = parts[0].numpy(), parts[1].numpy()
        result = torch.empty(len(codes), dtype=torch.float32)
        for begin in range(0, len(codes), _SLICE):
            part = codes[begin : begin + _SLICE]
            with np.errstate(invalid="ignore"):
                value = _LEVELS[np.abs(part)] * np.repeat(scales[begin // BLOCK : begin // BLOCK + len(part) // BLOCK], BLOCK)
            result.numpy()[begin : begin + len(part)] = np.where(part < 0, -value, value)
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
