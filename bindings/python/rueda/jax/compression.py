"""What gradients travel as: their own type or a 16-bit float type."""

import jax.numpy as jnp

from rueda import _compression
from rueda._compression import NoneCompressor


class FP16Compressor(_compression.FP16Compressor):
    """Floats travel as float16: 11 bits of precision, overflow above 65504."""

    module = jnp


class BF16Compressor(_compression.BF16Compressor):
    """Floats travel as bfloat16: 8 bits of precision, the range of float32."""

    module = jnp


class Compression:
    """The choices for the ``compression`` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
