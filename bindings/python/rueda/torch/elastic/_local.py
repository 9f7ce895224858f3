"""What ``TorchState(local=...)`` keeps: each rank has its own, a mirror has it too, and what lost ranks had is handed on."""

import torch

from rueda._objects import allgather_object
from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError
from rueda.elastic._mirror import Mirror
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
        By name; of objects with a ``state_dict()``, that. Tensors are in host memory. Made anew each time it is asked for.
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

    def save(self):
        """In an elastic job collective: it comes back when all ranks' copies are on their mirrors."""
        if _has_peers():
            self.settle()
            self._mirror.save(self._pack(), self._parts())
        else:
            self._mirror.keep(self._pack(), self._parts())

    def restore(self):
        array, orphans = self._mirror.saved
        self._load(array, torch.device)
        self._state.orphans = [Orphan(part) for part in orphans]

    def settle(self):
        """After the ranks have changed, collective: a newcomer gets what a lost rank had, or the mirror of that one does.

        RuntimeError on all ranks, if one cannot take what it gets.
        """
        settled = self._mirror.settle(self._parts()) if _has_peers() else None
        if settled is None:
            return
        error = None
        if settled.part is not None:
            is_own = settled.part.member == runtime.epoch.member
            try:
                self._load(settled.part.array, torch.device if is_own else _device_here)
            except HorovodInternalError:
                raise
            except Exception as another:
                error = f"the local= state of member {settled.part.member}: {type(another).__name__}: {another}"
        _require_none(allgather_object(error))
        known = {id(each._part): each for each in self._state.orphans}
        self._state.orphans = [known.get(id(part)) or Orphan(part) for part in settled.orphans]

    @property
    def is_whole(self):
        """Whether all copies are with ranks of this epoch: until then nobody leaves, and nobody comes."""
        return not _has_peers() or self._mirror.is_whole

    @property
    def holders(self):
        """Members that have what this rank had at its last save, too."""
        return self._mirror.holders if _has_peers() else ()

    def _parts(self):
        return [each._part for each in self._state.orphans]

    def _pack(self):
        values = {name: getattr(self._state, name) for name in self.names}
        return pack({name: value.state_dict() if _has_state(value) else value for name, value in values.items()})

    def _load(self, array, device_of):
        for name, new in unpack(array, device_of).items():
            value = getattr(self._state, name)
            if isinstance(value, torch.optim.Optimizer):
                with same_objects(value):
                    value.load_state_dict(new)
            elif _has_state(value):
                value.load_state_dict(new)
            elif _can_take(value, new):
                _fill(value, new)
            else:
                setattr(self._state, name, new)


def _require_none(errors):
    for rank, error in enumerate(errors):
        if error is not None:
            raise RuntimeError(f"rank {rank} cannot go on with {error}; build the same local= on all ranks")


def _device_here(name):
    """Where what was on a device of another rank goes: to the current one of that kind."""
    kind = torch.device(name).type
    if kind != "cuda":
        return torch.device(kind)
    return torch.device(kind, torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _can_take(value, new):
    """Whether a tensor may stay the one that it is, with another's shape, dtype and content."""
    if not isinstance(value, torch.Tensor) or not isinstance(new, torch.Tensor) or value.layout is not new.layout:
        return False
    return value.dtype == new.dtype or not value.requires_grad


def _fill(value, new):
    if value.shape == new.shape and value.dtype == new.dtype:
        with torch.no_grad():
            value.copy_(new)
    else:
        value.data = new.detach().to(value.device)
    if value.layout is torch.strided:
        new.data = value.data  # which may be in other values, too


def _has_peers():
    epoch = runtime.epoch
    return epoch is not None and epoch.elastic and not epoch.provisional


def _has_state(value):
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
