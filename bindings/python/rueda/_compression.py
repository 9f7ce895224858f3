"""What arrays travel as, and a collective on what tensors travel as under Horovod's compressors."""

from rueda._numpy import np


class NoneCompressor:
    """Leaves arrays as they are."""

    @staticmethod
    def compress(tensor):
        """Returns (the array that travels, whatever ``decompress`` needs)."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the array in its original type."""
        return tensor


class CastCompressor:
    """Sends floats as a 16-bit type; other types as they are."""

    module = np  # or another with its names, whose arrays they are

    @staticmethod
    def wire_dtype():
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor):
        tensor = cls.module.asarray(tensor)
        if not cls.module.issubdtype(tensor.dtype, cls.module.floating):
            return tensor, None
        return tensor.astype(cls.wire_dtype()), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(CastCompressor):
    @staticmethod
    def wire_dtype():
        return np.float16


class BF16Compressor(CastCompressor):
    @staticmethod
    def wire_dtype():
        import ml_dtypes  # NumPy itself has no bfloat16

        return ml_dtypes.bfloat16


class Compression:
    """What travels: ``none`` the array's own type, ``fp16`` and ``bf16`` a 16-bit float type."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def compressed(collective, compression, tensor, out=None, **arguments):
    """``collective(tensor, ...)`` of what the compressor makes of the tensor."""
    refuse_out(out)
    wire, context = compression.compress(tensor)
    return compression.decompress(collective(wire, **arguments), context)


def compressed_group(collective, compression, tensors, **arguments):
    """The same for a grouped collective; returns a tuple."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    outputs = collective([wire for wire, _ in pairs], **arguments)
    return tuple(
        compression.decompress(output, context) for output, (_, context) in zip(outputs, pairs)
    )


def refuse_out(out):
    """What has been compressed comes in another type than the tensor's."""
    if out is not None:
        raise ValueError("out= is for compression=none: a compressed result is made anew")
