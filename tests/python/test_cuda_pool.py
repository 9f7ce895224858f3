"""Memory from NCCL for PyTorch's tensors, without a GPU (`fake_gpu.py`): `hvd.cuda_pool`."""

import ctypes

import pytest
import torch
from fake_gpu import ENV, FOLDER, FakeGpu, needs_stubs

pytestmark = needs_stubs


class _Allocator:
    """As torch.cuda.memory.CUDAPluggableAllocator: calls two C functions of a library."""

    def __init__(self, path, allocate, free):
        library = ctypes.CDLL(path)
        self.malloc, self.free = getattr(library, allocate), getattr(library, free)
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
        self.free.restype = None
        self.free.argtypes = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p

    def allocator(self):
        return self


class _Pool:
    def __init__(self, allocator):
        self.allocator = allocator


def _with_a_pytorch_for_gpus(monkeypatch, rank):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: rank)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", _Allocator)
    monkeypatch.setattr(torch.cuda, "MemPool", _Pool, raising=False)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", None, raising=False)


def _stub(name):
    return getattr(ctypes.CDLL(ENV["RUEDA_NCCL_LIBRARY"]), name)()


def tensors_lie_where_nccl_can_register_them():
    from rueda import torch as hvd

    rank = hvd.rank()
    with pytest.MonkeyPatch.context() as monkeypatch:
        _with_a_pytorch_for_gpus(monkeypatch, rank)
        pool = hvd.cuda_pool()
        assert hvd.cuda_pool() is pool
        give = pool.allocator
        places = [give.malloc(4 * 300, rank, None) for _ in range(2)]
        assert all(places) and give.malloc(4, rank + 1, None) is None  # of the other GPU
        memory = [(ctypes.c_float * 300).from_address(place) for place in places]
        with FakeGpu(rank):
            for step in range(30):
                for i, each in enumerate(memory):
                    tensor = torch.frombuffer(each, dtype=torch.float32).fill_(rank + step + i)
                    hvd.allreduce_(tensor, op=hvd.Sum, name=f"pool.{i}")
                    assert torch.equal(tensor, torch.full((300,), 2.0 * (step + i) + 1)), step
        found = hvd.counters()
        assert found["planned_batches"] > 20
        assert found["nccl_windows"] >= 2 and found["nccl_registered_bytes"] >= 2 * 1200
        before = _stub("stub_nccl_registered_now")
        given = _stub("stub_nccl_given_now")
        give.free(places[0], 1200, rank, None)  # the stub ends the process if it is registered still
        assert _stub("stub_nccl_registered_now") < before and _stub("stub_nccl_given_now") == given - 1
    hvd.shutdown()
    assert _stub("stub_nccl_registered_now") == 0
    give.free(places[1], 1200, rank, None)  # frameworks free when the job is over, too
    assert _stub("stub_nccl_given_now") == 0


def an_old_nccl_is_told():
    from rueda import torch as hvd

    with pytest.MonkeyPatch.context() as monkeypatch:
        _with_a_pytorch_for_gpus(monkeypatch, 0)
        with pytest.raises(NotImplementedError, match=r"gives no memory \(ncclMemAlloc\): install 2.19 or newer"):
            hvd.cuda_pool()
        monkeypatch.delattr(torch.cuda, "MemPool")
        with pytest.raises(NotImplementedError, match="needs torch.cuda.MemPool, which PyTorch .* install 2.5"):
            hvd.cuda_pool()


def without_a_gpu_it_is_told():
    from rueda import torch as hvd

    with pytest.raises(NotImplementedError, match="needs a CUDA device, and PyTorch sees none here"):
        hvd.cuda_pool()
    hvd.shutdown()
    with pytest.raises(Exception, match="not been initialized|has been shut down"):
        hvd.cuda_pool()


def _run(run_ranks, size, function, env):
    outcome = run_ranks(size, function, env)
    assert outcome.code == 0, outcome.output


def test_tensors_of_the_pool_are_registered_and_let_go_of_before_they_are_freed(run_ranks):
    _run(run_ranks, 2, tensors_lie_where_nccl_can_register_them, ENV)


def test_what_is_missing_is_told(run_ranks):
    _run(run_ranks, 1, an_old_nccl_is_told, dict(ENV, RUEDA_NCCL_LIBRARY=str(FOLDER / "stub_nccl_old.so")))
    _run(run_ranks, 1, without_a_gpu_it_is_told, {})
