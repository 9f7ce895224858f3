"""A GPU for tests without one: tensors of the host are passed off as tensors of GPU <rank>.

The fake driver's memory is the host's and its streams are threads, so everything behind `Tensors.place`
(hvd) and `_gpus` (torch.distributed) is what a GPU would get. The host must wait for the fake GPU where a
GPU's own stream would order things.
"""

import ctypes
import os
import pathlib
import threading

import pytest

_LIBRARY = os.environ.get("RUEDA_LIBRARY") or pathlib.Path(__file__).parents[2] / "build/release/lib/librueda.so"
FOLDER = pathlib.Path(_LIBRARY).parent.parent / "tests" / "cuda"
ENV = {
    "RUEDA_CUDA_DRIVER": str(FOLDER / "fake_cuda.so"),
    "RUEDA_CUDA_KERNELS": str(FOLDER / "fake_kernels.so"),
    "RUEDA_NCCL_LIBRARY": str(FOLDER / "stub_nccl.so"),
}
needs_stubs = pytest.mark.skipif(
    not (FOLDER / "stub_nccl.so").exists(), reason="the fake driver is built with the C++ tests"
)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class FakeGpu:
    """While it is entered the binding takes tensors of the host for tensors of a GPU."""

    def __init__(self, device):
        self.started = 0
        self._device = device
        self._driver = ctypes.CDLL(os.environ["RUEDA_CUDA_DRIVER"])
        self._context = ctypes.c_void_p()
        self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)

    def __enter__(self):
        from rueda._requests import Request
        from rueda._runtime import Runtime
        from rueda.torch._tensors import Tensors

        def place(tensor):
            self.started += 1
            return self._device, 0

        self._changes = pytest.MonkeyPatch()
        self._changes.setattr(Tensors, "place", staticmethod(place))
        self._changes.setattr(Tensors, "stream", staticmethod(lambda device: 0))
        self._changes.setattr(Request, "make_wait", self._and_wait(Request.make_wait))
        int8 = Runtime.int8
        self._changes.setattr(Runtime, "int8", lambda *call: (int8(*call), self.wait())[0])
        return self

    def __exit__(self, *error):
        self._changes.undo()

    def _and_wait(self, make_wait):
        def both(request, stream):
            make_wait(request, stream)
            self.wait()

        return both

    def wait(self):
        """Until the default stream has done everything."""
        reached = threading.Event()
        callback = CALLBACK(lambda _: reached.set())
        self._driver.cuCtxPushCurrent_v2(self._context)
        assert self._driver.cuLaunchHostFunc(None, callback, None) == 0
        self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        assert reached.wait(100)

    def break_down(self):
        """Every later call that concerns its streams and events fails."""
        self._driver.fake_cuda_break(self._device)


class FakeGpuOfGroups(FakeGpu):
    """The same for groups of torch.distributed. ``waits``: the host waits where the current stream is to wait."""

    def __init__(self, device, waits=True):
        super().__init__(device)
        self._waits = waits

    def __enter__(self):
        from rueda._requests import Request
        from rueda.torch.distributed import _gpus

        def device_of(tensor):
            self.started += 1
            return self._device

        self._changes = pytest.MonkeyPatch()
        self._changes.setattr(_gpus, "device_of", device_of)
        self._changes.setattr(_gpus, "stream", lambda device: None if device < 0 else 0)
        self._changes.setattr(_gpus, "mark", lambda device: _Reached())
        self._changes.setattr(_gpus, "devices", lambda device: [])
        if self._waits:
            self._changes.setattr(Request, "make_wait", self._and_wait(Request.make_wait))
        return self

    def hold_up(self):
        """The default stream does nothing more until the event that this gives is set."""
        gate = threading.Event()
        callback = CALLBACK(lambda _: gate.wait(100))
        self._kept = callback
        self._driver.cuCtxPushCurrent_v2(self._context)
        assert self._driver.cuLaunchHostFunc(None, callback, None) == 0
        self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return gate


class _Reached:
    """A point in a stream of the host, which has done everything."""

    def wait(self):
        pass

    def reached(self):
        return True


class FakeGpuOfAttention:
    """The same for `rueda.attention`: its calls take tensors of the host for those of GPU ``device``, and its leaves find done what
    the GPU's stream would have done before them."""

    def __init__(self, device):
        self._fake, self._device = FakeGpu(device), device

    def __enter__(self):
        from rueda.attention.device import _ring, _run
        from rueda.attention.device._decode import Decode
        from rueda.attention.device._leaves import Rank

        self._changes = pytest.MonkeyPatch()
        self._changes.setattr(_ring, "_on_cpu", True)
        self._changes.setattr(_run, "place_of", lambda tensor: (self._device, None))
        for kind in (Rank, Decode):
            for name in ("perform", "give"):
                self._changes.setattr(kind, name, self._behind_the_stream(getattr(kind, name)))
        return self

    def __exit__(self, *error):
        self._changes.undo()

    def break_down(self):
        """A kernel that was launched has failed: whatever concerns the GPU's streams and events fails from here on."""
        self._fake.wait()
        self._fake.break_down()

    def _behind_the_stream(self, method):
        def waits(rank, *arguments):
            self._fake.wait()
            return method(rank, *arguments)

        return waits
