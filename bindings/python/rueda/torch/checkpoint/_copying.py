"""A rank's share of a state as its file will have it, copied into memory that is kept for the next save.

All that depends on names, types and shapes alone is kept as well: from one save to the next they rarely change.
"""

import hashlib
import json

import torch

from rueda.torch import _large_pages, _safetensors
from rueda.torch._moving import moved
from rueda.torch.checkpoint import _shares

_last = None  # the layout of the save before
_room = None  # the memory of its copy


class Layout:
    """Which rank writes what of a state, and what this rank's file has where.

    Attributes
    ----------
    forms : dict
        Of each tensor's name, (dtype, shape).
    digest : str
        Of names, types and shapes.
    plan : list
        Of each rank, its `_shares.Part`s.
    parts : list
        This rank's, in the order of its file.
    header : bytes
        That the file begins with.
    sizes : list of int
        Bytes of each part.
    """

    def __init__(self, entries, forms, firsts, ranks):
        self.key = _key(entries, forms, firsts, ranks)
        self.forms = forms
        text = json.dumps([list(entries), [(name, str(dtype), shape) for name, (dtype, shape) in forms.items()]])
        self.digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.plan = _shares.shares(forms, firsts, ranks.size)
        self.parts = sorted(self.plan[ranks.rank], key=lambda part: -_safetensors.itemsize(forms[part.name][0]))
        of_file = dict(map(self._form_in_file, self.parts))
        self.header, self.sizes = _safetensors.header_of(of_file, {"format": "pt"})

    def is_whole(self, part):
        return (part.first, part.last) == (0, torch.Size(self.forms[part.name][1]).numel())

    def _form_in_file(self, part):
        dtype, shape = self.forms[part.name]
        if self.is_whole(part):
            return part.name, (dtype, shape)
        return f"{part.name}[{part.first}:{part.last}]", (dtype, (part.last - part.first,))


def _key(entries, forms, firsts, ranks):
    return ranks.rank, ranks.size, list(entries), firsts, list(forms.items())


def layout_of(flat, ranks):
    """The one of the save before, if that had these names, types, shapes and ranks."""
    global _last
    forms = {name: (t.dtype, tuple(t.shape)) for name, t in flat.tensors.items()}
    if _last is None or _last.key != _key(flat.entries, forms, flat.firsts, ranks):
        _last = Layout(flat.entries, forms, flat.firsts, ranks)
    return _last


def copied(layout, tensors):
    """The bytes of this rank's parts, one behind the other. They are there until the next call."""
    sources = [_source(layout, part, tensors[part.name]) for part in layout.parts]
    on_gpu = any(t.is_cuda for t in sources)
    room = _room_for(layout, on_gpu)
    _copy(room.targets, sources, on_gpu)
    if on_gpu:
        torch.cuda.synchronize()
    return room.memory


def _source(layout, part, tensor):
    return tensor if layout.is_whole(part) else tensor.reshape(-1)[part.first : part.last]


def _copy(targets, sources, is_deferred):
    if not is_deferred:
        rest = [pair for pair in zip(targets, sources) if not moved(*pair)]
        targets, sources = [target for target, _ in rest], [source for _, source in rest]
    together = getattr(torch, "_foreach_copy_", None)  # from PyTorch 2.1 on
    if together is not None and targets:
        together(targets, sources, non_blocking=is_deferred)
    else:
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking=is_deferred)


class _Room:
    def __init__(self, nbytes, is_pinned):
        self.nbytes, self.is_pinned, self.layout = nbytes, is_pinned, None
        self._all = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) if is_pinned else _large_pages.flat(nbytes)

    def arrange(self, layout):
        if self.layout is layout:
            return
        self.layout, self.targets, at = layout, [], 0
        for part, size in zip(layout.parts, layout.sizes):
            dtype, shape = layout.forms[part.name]
            target = self._all[at : at + size].view(dtype)
            self.targets.append(target.view(shape) if layout.is_whole(part) else target)
            at += size
        self.memory = self._all[:at]


def _room_for(layout, is_pinned):
    global _room
    nbytes = sum(layout.sizes)
    if _room is None or _room.nbytes < nbytes or _room.is_pinned < is_pinned:
        _room = None  # first: there is no memory for two
        _room = _Room(nbytes, is_pinned)
    _room.arrange(layout)
    return _room
