"""A pool of CUDA memory that NCCL uses where it lies (docs/gpu.md)."""

import threading

import torch

from rueda import _ffi
from rueda._runtime import runtime

_lock = threading.Lock()
_pools = []  # one for the process, with the allocator that it needs as long as it lives


def cuda_pool():
    """The pool of CUDA memory that comes from NCCL, for ``torch.cuda.use_mem_pool``; always the same.

    >>> with torch.cuda.use_mem_pool(hvd.cuda_pool()):
    ...     buffer = torch.empty(1 << 20, device="cuda")

    Collectives on tensors in it need no copies of NCCL's own where GPUs and networks can do without: it
    is registered with every communicator that uses it, and as a symmetric window where all ranks have
    the same memory (NCCL 2.27). What is freed is deregistered first. Sizes are rounded up to 2 MiB by
    NCCL, so the pool is for large tensors and for what lives long.

    Returns
    -------
    torch.cuda.MemPool

    Raises
    ------
    HorovodInternalError
        Before ``init``.
    NotImplementedError
        There is no CUDA device, or PyTorch (2.5) or NCCL (2.19) has no such memory; it says which.
    """
    runtime.require_running()
    if not torch.cuda.is_available() or not torch.version.cuda:
        raise NotImplementedError(
            "cuda_pool() needs a CUDA device, and PyTorch sees none here; CPU tensors that ranks share are "
            "made by rueda.torch.empty and zeros"
        )
    if not (hasattr(torch.cuda, "MemPool") and hasattr(torch.cuda, "use_mem_pool")):
        raise NotImplementedError(
            f"cuda_pool() needs torch.cuda.MemPool, which PyTorch {torch.__version__} does not have: install "
            "2.5 or newer"
        )
    with _lock:
        runtime.open_cuda_pool(torch.cuda.current_device())
        if not _pools:
            allocator = torch.cuda.memory.CUDAPluggableAllocator(
                _ffi.library_path(), "rueda_cuda_pool_allocate", "rueda_cuda_pool_free"
            )
            _pools.extend((torch.cuda.MemPool(allocator.allocator()), allocator))
        return _pools[0]
