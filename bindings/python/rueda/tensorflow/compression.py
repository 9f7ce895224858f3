"""What gradients travel as: their own type or a 16-bit float type."""

import tensorflow as tf

from rueda._compression import NoneCompressor


class _CastCompressor:
    """Floats travel as another type; other tensors as they are."""

    wire = None

    @classmethod
    def compress(cls, tensor):
        """Returns (the tensor that travels, the type that it had or None)."""
        if not tensor.dtype.is_floating or tensor.dtype == cls.wire:
            return tensor, None
        return tf.cast(tensor, cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the tensor in its original type."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Floats travel as float16: 11 bits of precision, overflow above 65504."""

    wire = tf.float16


class BF16Compressor(_CastCompressor):
    """Floats travel as bfloat16: 8 bits of precision, the range of float32."""

    wire = tf.bfloat16


class Compression:
    """The choices for the ``compression`` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
