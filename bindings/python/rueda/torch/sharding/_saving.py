"""Writes the folder that `_checkpoint` reads: all ranks together, or one process what another source has."""

import collections
import contextlib
import os
import secrets

from rueda import _ffi
from rueda.torch import _safetensors
from rueda.torch.sharding._checkpoint import entry, file_of, put_index, remove_others, tensor_name
from rueda.torch.sharding._layout import overlap
from rueda.torch.sharding._state import is_per_element, numbered, opened

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
            remove_others(path, run)


def save_whole(path, source):
    """What another source has, by one process."""
    os.makedirs(path, exist_ok=True)
    run = f"{secrets.randbits(48):012x}"
    place = {number: n for n, number in enumerate(sorted(n for _, numbers in source.groups for n in numbers))}
    entries, pieces = [], []
    for number in place:
        forms = source.forms(number)
        shape, stride = next(((form[1], form[2]) for form in forms.values()), ((), ()))
        types = {key: form[0] for key, form in forms.items()}
        entries.append(entry(source.names.get(number), shape, stride, source.scalars(number), types))
        pieces += [_piece_of_source(source, place[number], number, key) for key in forms]
    _write(os.path.join(path, file_of(run, 0)), entries, pieces)
    for piece in pieces:
        _add_piece(entries, 0, piece)
    options = [options for options, _ in source.groups]
    members = [[place[n] for n in numbers] for _, numbers in source.groups]
    put_index(path, os.path.join(path, f"index.{run}.new"), run, 1, source.roundings, entries, options, members)
    remove_others(path, run)


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
    forms = {p: (p.shape, p.stride(), _whole_of(p, state)) for p in _unsharded(originals, batches)}
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
                yield _Piece(number, key, dtype, 0, p.numel(), parts[key].contiguous)


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


def _piece_of_source(source, place, number, key):
    dtype, shape, _ = source.forms(number)[key]
    count = 1
    for extent in shape:
        count *= extent
    return _Piece(place, key, dtype, 0, count, lambda: source.read(number, key, 0, count))


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
