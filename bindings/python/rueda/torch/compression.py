"""What gradients travel as: their own type, a 16-bit float type, or something smaller.

`Compressor` is Horovod's interface: a tensor is turned into another, those are reduced, the result
is turned back. int8, top-k and PowerSGD reduce by themselves (`rueda.torch._compress_reducer`).
"""

import torch

from rueda.torch._compress_int8 import Int8Compressor
from rueda.torch._compress_powersgd import PowerSGDCompressor
from rueda.torch._compress_topk import TopKCompressor


class Compressor:
    """Interface: how a tensor is made smaller before, and restored after it travelled."""

    @staticmethod
    def compress(tensor):
        """Returns (the tensor that travels, whatever ``decompress`` needs)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the tensor in its original type."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class _CastCompressor(Compressor):
    """Casts floating-point tensors to ``wire_dtype``; others stay as they are."""

    wire_dtype = None

    @classmethod
    def compress(cls, tensor):
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.wire_dtype), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Floats travel as float16: 11 bits of precision, overflow above 65504."""

    wire_dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Floats travel as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The choices for the ``compression`` argument; docs/compression.md compares them.

    ``topk(ratio)`` and ``powersgd(rank)`` make an instance that remembers what it left out. So does
    ``int8()``; ``int8`` itself stands for an instance of the optimizer's (or the call's) own.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    topk = TopKCompressor
    powersgd = PowerSGDCompressor
