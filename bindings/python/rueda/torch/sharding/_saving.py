"""Writes the folder that `_checkpoint` reads: all ranks together, or one process what another source has."""

import collections
import contextlib
import functools
import os
import secrets

import torch

from rueda import _ffi
from rueda.torch import _safetensors
from rueda.torch.sharding._checkpoint import entry, file_of, put_index, tensor_name
from rueda.torch.sharding._layout import is_dense, overlap
from rueda.torch.sharding._state import is_per_element, laid_out, numbered, opened, same_order

_Piece = collections.namedtuple("_Piece", "number key dtype first last read")
_Piece.__doc__ = """What one file has of one parameter's state ``key``; ``read()`` returns it, flat."""


def save(path, wire, groups, originals, batches, state, names, roundings):
    """Of all ranks, together; an error on one is an error on all, and leaves what was saved there before."""
    path = os.fspath(path)
    run = f"{wire.from_first(secrets.randbits(48)):012x}"
    own, new = os.path.join(path, file_of(run, wire.rank)), os.path.join(path, f"index.{run}.new")
    numbers = numbered(originals)
    failed = f"the state of the optimizer could not be saved to {path}"
    with together(wire, failed, [own]):
        os.makedirs(path, exist_ok=True)
        entries = _entries(originals, batches, state, names)
        _write(own, entries, _pieces(wire.rank, batches, state, numbers))
    with together(wire, failed, [own, new]):
        if wire.rank == 0:
            for rank in range(wire.size):
                _require_file(path, file_of(run, rank))
                for piece in _pieces(rank, batches, state, numbers):
                    _add_piece(entries, rank, piece)
            options = [{k: v for k, v in group.items() if k not in ("params", "param_names")} for group in groups]
            members = [[numbers[p] for p in parameters] for parameters in originals]
            put_index(path, new, run, wire.size, roundings, entries, options, members)


def save_whole(path, source):
    """What another source has, by one process."""
    os.makedirs(path, exist_ok=True)
    run = f"{secrets.randbits(48):012x}"
    place = {number: n for n, number in enumerate(sorted(n for _, numbers in source.groups for n in numbers))}
    entries, pieces = [], []
    for number in place:
        forms = source.forms(number)
        shape, stride = _common_form(source.names.get(number, number), forms)
        types = {key: form[0] for key, form in forms.items()}
        entries.append(entry(source.names.get(number), shape, stride, source.scalars(number), types))
        pieces += [_piece_of_source(source, place[number], number, key, stride) for key in forms]
    _write(os.path.join(path, file_of(run, 0)), entries, pieces)
    for piece in pieces:
        _add_piece(entries, 0, piece)
    options = [options for options, _ in source.groups]
    members = [[place[n] for n in numbers] for _, numbers in source.groups]
    put_index(path, os.path.join(path, f"index.{run}.new"), run, 1, source.roundings, entries, options, members)


@contextlib.contextmanager
def together(wire, what, files=()):
    """An error inside on any rank is one on all of them, and removes ``files``."""
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    failed = wire.combine(-1 if failure is None else wire.rank, _ffi.MAX)
    if failed < 0:
        return
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)
    if failure is not None:
        raise failure
    raise RuntimeError(f"{what}: rank {wire.ranks[int(failed)]} failed, whose own error says why")


def _entries(originals, batches, state, names):
    """Of all parameters, in the order of their numbers."""
    forms = {p: (p.shape, _stride_of(p), _whole_of(p, state)) for p in _unsharded(originals, batches)}
    for batch in batches:
        parts = state.get(batch.shard, {})
        types = {key: value.dtype for key, value in parts.items() if is_per_element(value, batch)}
        for slot in batch.slots:
            forms[slot.parameter] = slot.shape, slot.stride, (parts, types)
    result = []
    for p in numbered(originals):
        shape, stride, (parts, types) = forms[p]
        scalars = {key: value for key, value in parts.items() if key not in types}
        result.append(entry(names.get(p), shape, stride, scalars, types))
    return result


def _unsharded(originals, batches):
    sharded = {slot.parameter for batch in batches for slot in batch.slots}
    return [p for p in numbered(originals) if p not in sharded]


def _whole_of(p, state):
    """Of a parameter that is not trained: its state, which every rank has, and the types of what is like it."""
    parts = state.get(p) or {}
    return parts, {key: v.dtype for key, v in parts.items() if p.dim() > 0 and getattr(v, "shape", None) == p.shape}


def _stride_of(p):
    """Of what is like it in a file."""
    return p.stride() if is_dense(p.shape, p.stride()) else torch.empty(p.shape, device="meta").stride()


def _pieces(rank, batches, state, numbers):
    """Of a rank's file. One batch's share is open at a time."""
    for batch in batches:
        parts = state.get(batch.shard, {})
        types = {key: value.dtype for key, value in parts.items() if is_per_element(value, batch)}
        begin, opening = batch.layout.share * rank, _Opening(parts)
        for slot in batch.slots if types else ():
            part = overlap(slot.offset, slot.shape.numel(), begin, begin + batch.layout.share)
            if part is not None:
                at = slot.offset + part[0] - begin
                for key, dtype in types.items():
                    read = opening.reader(key, at, at + part[1] - part[0])
                    yield _Piece(numbers[slot.parameter], key, dtype, *part, read)
    for p, number in numbers.items() if rank == 0 else ():
        if state.get(p):
            parts, types = _whole_of(p, state)
            for key, dtype in types.items():
                read = functools.partial(_laid_out, parts[key], _stride_of(p))
                yield _Piece(number, key, dtype, 0, p.numel(), read)


def _laid_out(value, stride):
    return laid_out(opened(value).detach(), stride)


class _Opening:
    """A batch's state, opened when the first of it is read and let go with the last reader."""

    def __init__(self, parts):
        self._parts, self._open = parts, {}

    def reader(self, key, first, last):
        def read():
            if key not in self._open:
                self._open[key] = opened(self._parts[key])
            return self._open[key][first:last]

        return read


def _common_form(name, forms):
    """(shape, stride) of what a parameter has for each element."""
    first = next(iter(forms.items()), (None, (None, (), ())))
    for key, form in forms.items():
        if form[1] != first[1][1]:
            raise ValueError(
                f"state {key!r} of parameter {name} has the shape {form[1]}, {first[0]!r} {first[1][1]}; values of one "
                "parameter that differ in shape, as Adafactor's, cannot be saved here"
            )
    return first[1][1:]


def _piece_of_source(source, place, number, key, stride):
    dtype, shape, own = source.forms(number)[key]
    count = torch.Size(shape).numel()

    def read():
        if same_order(shape, own, stride):
            return source.read(number, key, 0, count)
        return laid_out(source.whole(number, key), stride)

    return _Piece(place, key, dtype, 0, count, read)


def _write(place, entries, pieces):
    """A file. Goes through the pieces twice: for the header, and for what is in them."""
    header, after = {}, []
    for piece in pieces:
        name = tensor_name(entries[piece.number]["name"], piece.number, piece.key)
        header[name] = (piece.dtype, (piece.last - piece.first,))
        after.append(piece.read)
    with _safetensors.Writer(place, header) as writer:
        after.reverse()
        while after:
            writer.write(after.pop()())


def _add_piece(entries, file, piece):
    part = [file, piece.first, piece.last]
    if part not in entries[piece.number]["pieces"]:
        entries[piece.number]["pieces"].append(part)


def _require_file(path, name):
    if not os.path.exists(os.path.join(path, name)):
        raise OSError(f"{path} has to be a folder that all ranks see: what rank 0 sees of it lacks {name}")
