"""What gradients travel as: their own type or a 16-bit float type."""

import jax.numpy as jnp


class NoneCompressor:
    """Leaves arrays as they are."""

    @staticmethod
    def compress(array):
        """Returns (the array that travels, whatever ``decompress`` needs)."""
        return array, None

    @staticmethod
    def decompress(array, ctx):
        """Returns the array in its original type."""
        return array


class _CastCompressor(NoneCompressor):
    wire_dtype = None

    @classmethod
    def compress(cls, array):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array, None
        return array.astype(cls.wire_dtype), array.dtype

    @staticmethod
    def decompress(array, ctx):
        return array if ctx is None else array.astype(ctx)


class FP16Compressor(_CastCompressor):
    """Floats travel as float16: 11 bits of precision, overflow above 65504."""

    wire_dtype = jnp.float16


class BF16Compressor(_CastCompressor):
    """Floats travel as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = jnp.bfloat16


class Compression:
    """The choices for the ``compression`` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
