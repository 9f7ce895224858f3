"""Where the state of an optimizer is between steps: encoded, or in a file, or both.

    step of batch n     read n + 1 |  decode n, the wrapped optimizer, encode n  | write n behind, while n + 1 ...

One batch's share is whole at a time, and with a file two more are on their way.
"""

import contextlib
import os

import torch

from rueda.torch.sharding import _codecs
from rueda.torch.sharding._file import File
from rueda.torch.sharding._saving import together
from rueda.torch.sharding._state import is_per_element


def codec_for(state_dtype):
    """ValueError: there is no such type."""
    if state_dtype is not None and state_dtype not in _codecs.CODECS:
        raise ValueError(f"state_dtype={state_dtype!r}: there are {', '.join(map(repr, _codecs.CODECS))}, and None")
    return _codecs.CODECS.get(state_dtype)


def keeping_for(codec, offload, wire):
    """None: the state stays as it is. An error on one rank is one on all."""
    file = None
    if offload is not None and offload != "cpu":  # where the state of parameters on the CPU is already
        if not isinstance(offload, (str, os.PathLike)):
            raise ValueError(f"offload={offload!r}: there are 'cpu', a folder, and None")
        with together(wire, f"offload={os.fspath(offload)!r}"):
            file = File(offload)
    return Keeping(codec, file) if codec is not None or file is not None else None


def as_the_optimizer_keeps(optimizer, batch, parts):
    """Plain values as torchao's optimizers have them, which quantise what they keep."""
    make = getattr(optimizer, "_new_buffer", None)
    if make is None:
        return parts
    result = dict(parts)
    for key, value in parts.items():
        if is_per_element(value, batch) and type(value) is torch.Tensor:
            result[key] = make(batch.shard.detach(), key == "exp_avg")
            result[key].copy_(value)
    return result


class Kept:
    """One value of the state while it is not needed. Has the shape and the type that it has when it is open."""

    def __init__(self, value, codec):
        self.shape, self.dtype, self._codec, self._kind = value.shape, value.dtype, codec, type(value)
        self._form = self.parts = self.extent = None

    @classmethod
    def of(cls, value, codec, first, noise):
        kept = cls(value, codec)
        if codec is not None:
            kept.parts = codec.encode(value, first, noise)
        else:
            kept.parts, kept._form = _codecs.taken_apart(value)
        return kept

    def move(self, extent, number):
        """Its parts are in a file, the first with that number of the extent's tensors. How many they are."""
        self.extent, self._first, self._count, self.parts = extent, number, len(self.parts), None
        return self._count

    def open(self, parts=None):
        """The tensor. ``parts``: all that was in its extent."""
        if self.extent is None:
            parts = self.parts
        elif parts is not None:
            parts = parts[self._first : self._first + self._count]
        else:
            parts = [self.extent.read(n) for n in range(self._first, self._first + self._count)]
        if self._codec is not None:
            return self._codec.decode(parts, self.dtype)
        return _codecs.put_together(self._kind, parts, self._form)

    @property
    def nbytes(self):
        """In memory."""
        return sum(part.numel() * part.element_size() for part in self.parts or ())


class Keeping:
    """Of one optimizer.

    Parameters
    ----------
    codec : class or None
        One of `_codecs`.
    file : File or None
    """

    def __init__(self, codec, file):
        self.codec, self.file = codec, file
        self.roundings = 0  # steps that have rounded

    def keep(self, batch, parts, by_chance, extent=None):
        """A batch's state for later.

        Parameters
        ----------
        by_chance : bool
            It is new; else it is rounded to what is next, which is what it was if it had been rounded before.
        extent : Extent, optional
            Where it was, and nobody needs it.
        """
        result, kept = dict(parts), []
        for key, value in parts.items():
            if isinstance(value, torch.Tensor) and is_per_element(value, batch):
                codec = self.codec if type(value) is torch.Tensor and self.codec and self.codec.takes(value) else None
                if codec is None and self.file is None:
                    continue
                noise = _codecs.seed(self.roundings, batch.slots[0].name, key) if by_chance else None
                result[key] = Kept.of(value.detach().contiguous(), codec, batch.begin, noise)
                kept.append(result[key])
        if self.file is not None and kept:
            tensors = [part for each in kept for part in each.parts]
            if extent is None or not extent.fits(tensors):
                extent = self.file.extent(tensors)
            first = 0
            for each in kept:
                first += each.move(extent, first)
            extent.write_behind(tensors)
        return result

    def errors_together(self, wire):
        """Errors of the disk inside are errors of all ranks."""
        if self.file is None:
            return contextlib.nullcontext()
        return together(wire, "the state of the optimizer could not be read or written")

    @staticmethod
    def open(parts):
        """A batch's state as the wrapped optimizer has it."""
        extent = extent_of(parts)
        read = extent.take() if extent is not None else None
        return {key: value.open(read) if isinstance(value, Kept) else value for key, value in parts.items()}


def extent_of(parts):
    """Where a batch's state is in the file, if it is."""
    for value in parts.values():
        if isinstance(value, Kept) and value.extent is not None:
            return value.extent
    return None
