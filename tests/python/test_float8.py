"""8-bit floats on the CPU: moved like bytes, not reduced."""

import pytest
import torch
from worlds import results

TYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


def float8_tensors_are_moved():
    from rueda import torch as hvd

    rank, size = hvd.rank(), hvd.size()
    for dtype in TYPES:
        rows = torch.arange(3.0 * (rank + 1)).view(rank + 1, 3).to(dtype)
        every = torch.cat([torch.arange(3.0 * (r + 1)).view(r + 1, 3) for r in range(size)])
        gathered = hvd.allgather(rows)
        assert gathered.dtype == dtype and torch.equal(gathered.float(), every)
        told = torch.full((5,), float(rank)).to(dtype)
        hvd.broadcast_(told, root_rank=1)
        assert told.dtype == dtype and told.float().tolist() == [1.0] * 5
        got, splits = hvd.alltoall(torch.arange(float(size)).to(dtype), splits=[1] * size)
        assert got.float().tolist() == [float(rank)] * size and splits.tolist() == [1] * size
        layer = torch.nn.Linear(2, 2)
        layer.register_buffer("small", torch.full((2,), float(rank)).to(dtype))
        hvd.broadcast_parameters(layer.state_dict(), root_rank=1)
        assert layer.small.float().tolist() == [1.0, 1.0]


def float8_reductions_say_what_to_do():
    from rueda import torch as hvd

    for dtype in TYPES:
        tensor = torch.full((3000,), float(hvd.rank())).to(dtype)
        name = str(dtype).replace("torch.", "")
        for call in (hvd.allreduce, hvd.reducescatter, lambda t: hvd.allreduce(t, op=hvd.Adasum)):
            with pytest.raises(ValueError, match=f"{name} tensors on the CPU are moved"):
                call(tensor)
        total = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.bf16)
        assert total.dtype == dtype and set(total.float().tolist()) == {1.0}


def test_float8_tensors_are_moved(run_ranks):
    results(run_ranks(2, float8_tensors_are_moved))


def test_float8_reductions_are_refused_on_every_rank_or_travel_as_bfloat16(run_ranks):
    results(run_ranks(2, float8_reductions_say_what_to_do))
