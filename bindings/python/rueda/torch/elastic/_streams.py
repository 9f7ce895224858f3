"""Copies by a thread, on GPUs: their order among the work of the streams that train.

    training stream   step, commit, mark ──┐  next batch          ┌──> wait, next step
    copying stream                         └──> wait, copies, mark┘
"""

import contextlib

import torch


class Streams:
    """Of the copies of some tensors. Where none is on a GPU, nothing is to be done.

    Made by the thread that trains, on the streams that have filled the tensors; `copying` is for the other thread. Copies go to
    a stream of their own: a thread's own is the default one, on which most scripts train.
    """

    def __init__(self, tensors):
        self._committed = {device: _mark(device) for device in {each.device for each in tensors if each.is_cuda}}
        self._copied = {}

    @contextlib.contextmanager
    def copying(self):
        """What is copied within comes behind what had been submitted when this was made."""
        with contextlib.ExitStack() as stack:
            for device, event in self._committed.items():
                stack.enter_context(torch.cuda.stream(_stream_of(device)))
                torch.cuda.current_stream(device).wait_event(event)
            yield
            self._copied = {device: _mark(device) for device in self._committed}

    def use(self, *tensors):
        """These are read or written by the copying stream: their memory is not to be used again before it is done."""
        for tensor in tensors:
            if tensor.device in self._committed:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def wait_for_copies(self):
        """What this thread submits from now on comes behind the copies, which have been submitted."""
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)


_own = {}  # device: the stream that copies there


def _stream_of(device):
    if device not in _own:
        _own[device] = torch.cuda.Stream(device)
    return _own[device]


def _mark(device):
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
