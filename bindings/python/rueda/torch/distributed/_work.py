"""What an operation that goes on is to its caller: `torch.distributed.Work`."""

import threading
from datetime import timedelta

import torch
from torch.distributed import Work as _Work

from rueda import _ffi
from rueda._requests import SLICE
from rueda._runtime import runtime
from rueda.common.exceptions import DeadlineExceeded
from rueda.torch._futures import complete_later
from rueda.torch.distributed import _gpus, _profile
from rueda.torch.distributed._errors import as_backend_error
from rueda.torch.distributed._futures import WorkFuture

# Before 2.7 PyTorch's C++ does not keep the Python part of a work alive, and waits for ever where it is gone; it may
# wait several times, once for each tensor. So the last works live on, as many as are small enough.
_IS_FORGOTTEN = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
_LEAST_ALIVE, _MOST_ALIVE, _MOST_BYTES = 8, 256, 64 << 20
_wait, _OK = _ffi.library.rueda_request_wait, _ffi.OK
_initialize, _Lock = _Work.__init__, threading.Lock
_alive = {}  # Work: bytes of its tensors, in the order of their starts


def _keep_alive(work):
    _alive[work] = _bytes(work._result)
    total = sum(_alive.values())
    for old in list(_alive)[:-_LEAST_ALIVE]:
        if len(_alive) <= _MOST_ALIVE and total <= _MOST_BYTES:
            break
        if old.is_completed():
            total -= _alive.pop(old, 0)


def _bytes(tensors):
    return sum(t.nbytes if isinstance(t, torch.Tensor) else _bytes(t) for t in tensors)


class Ended(_Work):
    """One that has ended well."""

    def __init__(self, result=()):
        super().__init__()
        self._result = result

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def is_success(self):
        return True

    def exception(self):
        return None

    def synchronize(self):
        pass

    def block_current_stream(self):
        pass

    def result(self):
        return list(self._result)

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self.result())
        return future


class Work(_Work):
    """One or several requests of the library that are one operation.

    Holds the tensors until the requests have ended. Whoever finds first that they have (by `wait`,
    `is_completed` or the future) runs ``finish``, which brings results to where they belong.

    Those of a GPU end when the GPU has been given the work: its current stream then waits for it, the
    host does not.
    """

    # What most works never change lies here, because one is made for every call.
    _done = False
    _error = _future = None
    _source = -1
    _device = -1  # whose current stream comes behind it; -1: the host
    _finished = None  # of a GPU: behind what ``finish`` has given to it

    def __init__(
        self, group, name, requests, descriptions, keep, result, finish, seconds, device=-1
    ):
        _initialize(self)
        self._group, self._name = group, name
        self._requests, self._descriptions = requests, descriptions
        self._keep, self._result, self._finish = keep, result, finish
        self._seconds = seconds
        if device >= 0:
            self._device = device
        self._lock = _Lock()
        if _IS_FORGOTTEN:
            _keep_alive(self)

    def wait(self, timeout=None):
        """True, or raises. After ``timeout`` alone the operation goes on; after the group's time its group ends."""
        if not self._done:
            requests = self._requests
            if (
                timeout is None
                and len(requests) == 1
                and self._seconds > SLICE
                and not _profile.is_on()
            ):
                if _wait(requests[0].pointer, SLICE, None) == _OK:  # most end here
                    self._end()
                    self.block_current_stream()
                    return True
            limit = _seconds(timeout)
            try:
                if _profile.is_on():
                    with _profile.event(self._name, prefix="wait_"):
                        self._wait_for_requests(limit)
                else:
                    self._wait_for_requests(limit)
            except DeadlineExceeded as error:
                if limit is not None and not self._has_ended():
                    raise as_backend_error(error) from None
                self._fail(self._group._timed_out(self._name, error))
            except Exception as error:
                self._fail(error)
            else:
                self._end()
        if self._error is not None:
            raise self._error
        self.block_current_stream()
        return True

    def _wait_for_requests(self, limit):
        for request in self._requests:
            request.wait(self._seconds if limit is None else limit)

    def synchronize(self):
        self.wait()

    def block_current_stream(self):
        if self._device < 0:
            return
        if self._finished is not None:
            self._finished.wait()
            return
        for request in self._requests:
            request.make_wait(_gpus.stream(self._device))

    def is_completed(self):
        if not self._done and self._has_ended():
            try:
                self.wait()
            except Exception:  # exception() gives it
                pass
        return self._done and self._is_reached()

    def _is_reached(self):
        """Whether the GPU has done it."""
        if self._device < 0 or self._error is not None:
            return True
        if self._finished is not None:
            return self._finished.reached()
        return all([request.memory_released() for request in self._requests])

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        self.is_completed()
        return self._error

    def result(self):
        return list(self._result)

    def source_rank(self):
        """In the group, after the end of a receive."""
        return self._source

    _source_rank = source_rank

    def get_future(self):
        with self._lock:
            made = self._future is None
            if made:
                self._future = WorkFuture(self, _gpus.devices(self._device))
                self._descriptions = None  # a request that is watched is not used again
            future, requests, done = self._future, self._requests, self._done
        if made:
            if done:
                future.help_on()
            else:
                complete_later(future, lambda: requests[-1])
        return future

    def _has_ended(self):
        return all([request.test() for request in self._requests])

    def _end(self):
        """What has ended well is finished, once."""
        with self._lock:
            if self._done:
                return
            if self._device >= 0:
                self._end_on_gpu()
            elif self._finish is not None:
                with torch.no_grad():
                    self._finish(self)
            if self._device < 0:
                if self._descriptions is not None:
                    for description, request in zip(self._descriptions, self._requests):
                        self._group._group.put_back(description, request)
                self._requests = ()
            self._finish = self._keep = None
            self._done = True

    def _end_on_gpu(self):
        runtime.hold(self._requests, self._keep)
        if self._finish is None:
            return
        self.block_current_stream()
        with torch.no_grad():
            self._finish(self)
        self._finished = _gpus.mark(self._device)

    def _fail(self, error):
        with self._lock:
            if self._done:
                return
            self._error = as_backend_error(error)
            requests, self._requests = self._requests, ()
            self._done = True
        runtime.hold(requests, self._keep)

    def __del__(self):
        if (
            not self._done
            and hasattr(self, "_lock")
            and not (self._device < 0 and self._has_ended())
        ):
            runtime.hold(self._requests, self._keep)


def _seconds(timeout):
    """Of PyTorch's timedelta; None where none is given."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    return timeout if timeout > 0 else None
