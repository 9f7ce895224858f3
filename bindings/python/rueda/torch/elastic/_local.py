"""What ``TorchState(local=...)`` keeps: each rank has its own, a mirror has it too, and what lost ranks had is handed on."""

import torch

from rueda._runtime import runtime
from rueda.elastic._mirror import Mirror, Part
from rueda.torch._plain import same_objects
from rueda.torch.elastic._payload import pack, unpack


class Orphan:
    """The ``local=`` state of a rank that was lost, and that nobody has replaced.

    Attributes
    ----------
    member : int
        The number of its process, RUEDA_MEMBER.
    rank : int
        Which it had at its last save.
    values : dict
        By name; of objects with a ``state_dict()``, that. Made anew each time it is asked for.
    """

    def __init__(self, part):
        self._part = part
        self.member, self.rank = part.member, part.rank

    @property
    def values(self):
        return unpack(self._part.array)

    def __repr__(self):
        return f"Orphan(member={self.member}, rank={self.rank})"


class Local:
    """The attributes ``names`` of a state, and its ``orphans``."""

    def __init__(self, state, names):
        self._state, self.names = state, sorted(names)
        self._mirror = Mirror(self._pack())
        self._has_inherited = False  # from a rank that was lost, and saved nothing since

    def save(self):
        """In an elastic job collective: it comes back when all ranks' copies are on their mirrors."""
        if _has_peers():
            self.settle()
            self._mirror.save(self._pack(), self._parts())
            self._has_inherited = False
        else:
            self._mirror.keep(self._pack(), self._parts())

    def restore(self):
        array, orphans = self._mirror.saved
        self._load(array)
        self._state.orphans = [Orphan(part) for part in orphans]

    def settle(self):
        """After the ranks have changed, collective: a newcomer gets what a lost rank had, or the mirror of that one does."""
        settled = self._mirror.settle(self._parts()) if _has_peers() else None
        if settled is None:
            return
        if settled.is_newer or self._has_inherited:
            self.restore()
        if settled.part is not None:
            self._load(settled.part.array)
        self._has_inherited = settled.part is not None
        kept = [each for each in self._state.orphans if each.member not in settled.given]
        known = {each.member for each in kept}
        new = [Orphan(Part(*part)) for part in settled.orphans if part.member not in known]
        self._state.orphans = kept + new

    def _parts(self):
        return [each._part for each in self._state.orphans]

    def _pack(self):
        values = {name: getattr(self._state, name) for name in self.names}
        return pack({name: value.state_dict() if _has_state(value) else value for name, value in values.items()})

    def _load(self, array):
        for name, new in unpack(array).items():
            value = getattr(self._state, name)
            if isinstance(value, torch.optim.Optimizer):
                with same_objects(value):
                    value.load_state_dict(new)
            elif _has_state(value):
                value.load_state_dict(new)
            elif _fits(value, new):
                with torch.no_grad():
                    value.copy_(new)
            else:
                setattr(self._state, name, new)


def _has_peers():
    epoch = runtime.epoch
    return epoch is not None and epoch.elastic and not epoch.provisional


def _has_state(value):
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _fits(value, new):
    tensors = isinstance(value, torch.Tensor) and isinstance(new, torch.Tensor)
    return tensors and value.shape == new.shape and value.dtype == new.dtype
