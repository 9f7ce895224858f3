"""What this package asks of GPUs beside the library: where tensors lie, and the order of streams.

Tests without a GPU put functions of their own in the place of these.
"""

import torch

from rueda.torch._tensors import _raw_stream


def device_of(tensor):
    """-1 for host memory, else the GPU."""
    return -1 if tensor.is_cpu else tensor.device.index


def stream(device):
    """The current one of that GPU, for the library; None for host memory."""
    return None if device < 0 else _raw_stream(device)


def mark(device):
    """A point behind what the current stream has been given; its ``wait()`` makes the current stream wait for it."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return _Mark(event, device)


class _Mark:
    def __init__(self, event, device):
        self._event, self._device = event, device

    def wait(self):
        self._event.wait(torch.cuda.current_stream(self._device))

    def reached(self):
        return self._event.query()


def devices(device):
    """Those of a future."""
    return [] if device < 0 else [torch.device("cuda", device)]
