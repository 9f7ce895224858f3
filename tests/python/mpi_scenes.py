"""What test_mpi.py starts on every rank under mpirun: ``mpi_scenes.py SCENE``."""

import ctypes
import json
import os
import signal
import socket
import sys

import numpy as np
import rueda as hvd

MULTIPLE = 3


def report(**facts):
    os.write(1, ("REPORT " + json.dumps(facts) + "\n").encode())


def open_mpi():
    return ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)


def initialised_by_the_program(level=MULTIPLE):
    """As a program with mpi4py does: it starts MPI, and it ends it."""
    mpi = open_mpi()
    provided = ctypes.c_int()
    mpi.MPI_Init_thread(None, None, level, ctypes.byref(provided))
    return mpi


def world_of(mpi):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))


def mpi_finalised(mpi):
    flag = ctypes.c_int()
    mpi.MPI_Finalized(ctypes.byref(flag))
    return flag.value


def every_kind(count):
    size, rank = hvd.size(), hvd.rank()
    mine = np.arange(count, dtype=np.float32) + rank
    total = np.arange(count, dtype=np.float32) * size + sum(range(size))
    assert np.array_equal(hvd.allreduce(mine, op=hvd.Sum), total)
    assert np.array_equal(hvd.reducescatter(mine, op=hvd.Sum), np.array_split(total, size)[rank])
    assert np.array_equal(hvd.broadcast(mine, size - 1), mine - rank + size - 1)
    parts = [np.full(count + r, r) for r in range(size)]
    assert np.array_equal(hvd.allgather(parts[rank]), np.concatenate(parts))
    sent = np.repeat(np.arange(size), count) + 10 * rank
    got = np.concatenate([np.full(count, rank + 10 * r) for r in range(size)])
    assert np.array_equal(hvd.alltoall(sent), got)


def beside_mpi4py():
    mpi = initialised_by_the_program()
    world = world_of(mpi)
    for _ in range(2):
        hvd.init()
        every_kind(1000)
        mpi.MPI_Barrier(world)  # the program's own calls go on
        hvd.shutdown()
    left = mpi_finalised(mpi)
    mpi.MPI_Barrier(world)
    report(rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), finalised=left, code=mpi.MPI_Finalize())


def with_mpi4py():
    """mpi4py initialises MPI when it is imported and finalises it at exit; its own calls overlap with ours."""
    from mpi4py import MPI

    hvd.init()
    world = MPI.COMM_WORLD
    assert (world.rank, world.size) == (hvd.rank(), hvd.size())
    mine, late = np.full(50_000, world.rank + 1.0), np.zeros(50_000)
    request = world.Iallreduce(mine, late)
    every_kind(1000)
    request.Wait()
    sums = [hvd.allreduce(np.full(3, 1.0), op=hvd.Sum, name=f"turn {i}") * world.allreduce(1) for i in range(5)]
    hvd.shutdown()
    world.Barrier()
    report(rank=world.rank, late=late[-1], sums=sums[-1].tolist(), finalised=MPI.Is_finalized())


def the_program_ends_mpi_first():
    mpi = initialised_by_the_program()
    hvd.init()
    every_kind(10)
    rank = hvd.rank()
    mpi.MPI_Barrier(world_of(mpi))  # nobody is in a collective any more
    mpi.MPI_Finalize()
    try:
        hvd.allreduce(np.ones(3), name="late")
        text = "no error"
    except hvd.HorovodInternalError as error:
        text = str(error)
    report(rank=rank, text=text)


def mpi_without_threads():
    mpi = initialised_by_the_program(level=0)
    try:
        hvd.init()
        text = "no error"
    except Exception as error:
        text = str(error)
    report(text=text)
    mpi.MPI_Finalize()


def chunks():
    hvd.init()
    for count in (1, 7, 1000, 100_003):
        every_kind(count)
    report(rank=hvd.rank(), mpi=hvd.counter("mpi_bytes"), tcp=hvd.counter("tcp_bytes"))
    hvd.shutdown()


def between_hosts():
    hvd.init()
    for count in (1, 1000, 100_003):
        every_kind(count)
    bytes_over = {name: hvd.counter(f"{name}_bytes") for name in ("mpi", "tcp", "shm")}
    report(rank=hvd.rank(), local=hvd.local_size(), host=socket.gethostname(), own=os.environ["MY_OWN"],
           token=os.environ.get("MY_TOKEN"), **bytes_over)  # fmt: skip
    hvd.shutdown()


def more_than_2_gib():
    hvd.init()
    count = 2**31 + 17
    data = np.zeros(count, dtype=np.uint8)
    if hvd.rank() == 0:
        data[0], data[2**31 - 1], data[2**31], data[-1] = 1, 2, 3, 4
    got = hvd.broadcast(data, 0)
    ends = [int(got[i]) for i in (0, 2**31 - 1, 2**31, count - 1)]
    report(rank=hvd.rank(), ends=ends, rest=int(got.sum(dtype=np.int64)) - sum(ends))
    hvd.shutdown()


def a_rank_is_killed():
    hvd.init()
    rank = hvd.rank()
    try:
        # What a rank has sent goes with it, where MPI has not moved it on: the others may not see the end of this.
        hvd.allreduce(np.ones(10), name="before")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(1_000_000), name="after")
        text = "no error"
    except hvd.HorovodInternalError as error:
        text = str(error)
    report(rank=rank, text=text)
    os._exit(0)  # MPI_Finalize would wait for the dead


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]]())
