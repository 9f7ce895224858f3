"""The backend: PyTorch's operations as calls of an ordered group.

Every method brings its tensors into one flat memory (where they lie, if it can), and hands one
`Description` to `_call`, which waits or gives a `Work`. Methods have the old and the new names.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from rueda._ordered_groups import Group
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.torch.distributed import _detail, _gpus, _profile
from rueda.torch.distributed._errors import as_backend_error
from rueda.torch.distributed._messages import Messages
from rueda.torch.distributed._moving import Moving
from rueda.torch.distributed._options import is_asynchronous
from rueda.torch.distributed._reducing import Reducing
from rueda.torch.distributed._work import Ended, Work
from rueda.torch.memory import flat

_DEVICES = [torch.device("cpu"), torch.device("cuda")]


class ProcessGroup(Reducing, Moving, Messages, dist.ProcessGroup):
    """``ranks`` are ranks of the job in the order of the group; made by their members alone."""

    def __init__(self, rank, ranks, name, timeout, on_close):
        super().__init__(rank, len(ranks))
        self._rank, self._ranks, self._size = rank, list(ranks), len(ranks)
        self._name = self._description = name
        self._seconds = timeout.total_seconds()
        self._group = Group("c10d." + name, ranks)
        self._on_close = on_close
        self._open = True
        self._sequence = 0
        self._ended = Ended()
        self._checks = _detail.checks_sites()

    # What PyTorch asks of a group.

    def getBackendName(self):
        return "rueda"

    name = getBackendName
    _get_backend_name = getBackendName

    def getRank(self):
        return self._rank

    rank = getRank

    def getSize(self):
        return self._size

    size = getSize

    @property
    def group_name(self):
        return self._name

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self):
        return self._description

    def getGroupDesc(self):
        return self._description

    def setGroupDesc(self, description):
        self._description = description

    _set_group_desc = setGroupDesc

    @property
    def _device_types(self):
        return list(_DEVICES)

    def _get_backend(self, device):
        return self

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    @property
    def options(self):
        options = dist.Backend.Options("rueda", timedelta(seconds=self._seconds))
        options.global_ranks_in_group = self._ranks
        options.group_name = self._name
        return options

    def supports_tensor_alloc(self, device):
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size, *, dtype, device=None):
        """A flat tensor, not cleared, that collectives work on without a copy."""
        if device is not None and not self.supports_tensor_alloc(device):
            raise ValueError(f"allocate_tensor: there is memory for cpu tensors, not for {device}")
        return flat(size, dtype, zeroed=False)

    def set_timeout(self, timeout):
        self._seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _has_hooks(self):
        return False

    def shutdown(self):
        """This rank is done with it. Waits for nobody."""
        if self._open:
            self._open = False
            self._group.close()
            self._on_close()

    def abort(self):
        """Ends what is under way here and on all members."""
        if self._open:
            self._group.abort(f"rank {self._rank} of the group called abort()")
            self.shutdown()

    def __repr__(self):
        return f"<rueda process group {self._name!r}, rank {self._rank} of {self._size}>"

    # Calls.

    def _call(
        self,
        name,
        description,
        source,
        target,
        keep,
        result,
        finish,
        opts,
        given=None,
    ):
        """One collective: waited for, or a `Work`. ``finish`` brings results to their places.

        ``given`` are the tensors that the caller put in, where ``keep`` does not begin with the one.
        """
        self._sequence += 1
        later, seconds = is_asynchronous(opts), self._limit(opts)
        if self._checks:
            _detail.check(self, name)
        if _profile.is_on():
            with _profile.event(name, _profile.first_of(keep) if given is None else given):
                return self._called(
                    name, description, source, target, keep, result, finish, later, seconds
                )
        return self._called(name, description, source, target, keep, result, finish, later, seconds)

    def _limit(self, opts):
        """Seconds that a call may take."""
        limit = opts.timeout
        return self._seconds if limit.days < 0 or not limit else limit.total_seconds()

    def _called(self, name, description, source, target, keep, result, finish, later, seconds):
        group = self._group
        try:
            if description.device < 0 and not later:
                group.run(description, source, target, keep, seconds)
                if finish is not None:
                    with torch.no_grad():
                        finish(None)
                return self._ended
            device = description.device
            request = group.start(description, source, target, keep, _gpus.stream(device))
        except DeadlineExceeded as error:
            raise self._timed_out(name, error) from None
        except HorovodInternalError as error:
            raise as_backend_error(error) from None
        return Work(self, name, (request,), (description,), keep, result, finish, seconds, device)

    def _timed_out(self, name, error):
        """Ends the group, for all, because ranks did not come in time."""
        error = as_backend_error(error)
        self._group.abort(f"{name} timed out on rank {self._rank}: {error}")
        return error

    def _as_one(self, name, descriptions, sources, targets, keep, result, finish, opts, given):
        """Several collectives of one kind as one call of the group; ``given`` are the tensors that go in."""
        if len(descriptions) == 1:
            return self._call(
                name, descriptions[0], sources[0], targets[0], keep, result, finish, opts, given
            )
        if not descriptions:
            return self._ended
        self._sequence += 1
        if self._checks:
            _detail.check(self, name)
        if _profile.is_on():
            with _profile.event(name, given):
                return self._started(
                    name, descriptions, sources, targets, keep, result, finish, opts
                )
        return self._started(name, descriptions, sources, targets, keep, result, finish, opts)

    def _started(self, name, descriptions, sources, targets, keep, result, finish, opts):
        device = descriptions[0].device
        if any([description.device != device for description in descriptions]):
            raise ValueError(f"{name}: the tensors of one call must be on one device")
        try:
            requests = self._group.start_as_one(
                descriptions, sources, targets, _gpus.stream(device)
            )
        except HorovodInternalError as error:
            raise as_backend_error(error) from None
        work = Work(self, name, requests, None, keep, result, finish, self._limit(opts), device)
        if is_asynchronous(opts):
            return work
        work.wait()
        return self._ended
