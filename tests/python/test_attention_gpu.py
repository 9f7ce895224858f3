"""Attention of GPU tensors through the executor of GPUs: streams, events and messages of the fake driver and the stub of NCCL
(`fake_gpu.py`), kernels that compute on the host, all against dense attention in float64."""

import os

import pytest
import rueda as hvd
import rueda.attention as ra
import torch
from attention_oracle import LENGTH, causal, dense, dilated, error, inputs
from fake_gpu import ENV, FakeGpuOfAttention, needs_stubs
from test_attention_device import EVERYTHING, exact, one_thread, packed, window  # noqa: F401
from worlds import run_ranks

pytestmark = needs_stubs
# options of the ring, error of the output, what they are compared with
SCHEMES = [
    ("causal", dict(causal=True), causal()),
    ("queries travel", dict(causal=True, rotate_forward="q", rotate_backward="q"), causal()),
    ("queries, then keys", dict(rotate_forward="q", chunk_tokens=7), EVERYTHING),
    ("grouped", dict(causal=True, ulysses_degree=2), causal()),
    ("grouped, queries travel", dict(causal=True, ulysses_degree=2, rotate_forward="q", rotate_backward="q"), causal()),
    ("all heads", dict(causal=True, ulysses_degree=4), causal()),
    ("computed again in backward", dict(causal=True, save="qkv"), causal()),
    ("a window of queries", dict(window_size=(9, 4), rotate_forward="q", rotate_backward="q"), window(9, 4)),
]  # fmt: skip


@pytest.fixture
def gpu(monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, os.environ.get(name, value))
    with FakeGpuOfAttention(0) as fake:
        yield fake


@pytest.mark.parametrize("name, options, times", SCHEMES)
def test_virtual_ranks_in_the_streams_of_a_gpu(gpu, name, options, times):
    exact(4, times, "zigzag", **options)


def test_dilated_queries_travel(gpu):
    pairs = {"segment_lengths": (16, LENGTH), "dilation_rates": (1, 3)}
    exact(3, dilated([*zip(*pairs.values())]), "contiguous", rotate_forward="q", rotate_backward="q", **pairs)


def test_sequences_of_other_lengths_of_keys(gpu):
    ends, of_keys = (0, 11, 12, 40, LENGTH), (0, 5, 9, 30, 41)
    times = torch.zeros(1, LENGTH, of_keys[-1])
    for (q, q_end), (k, k_end) in zip(zip(ends, ends[1:]), zip(of_keys, of_keys[1:])):
        times[:, q:q_end, k:k_end] = 1
    for rotate in ("kv", "q"):
        exact(
            3, times, cu_seqlens=ends, cu_seqlens_k=of_keys, kv=of_keys[-1], rotate_forward=rotate, rotate_backward=rotate,
            lse_gradient=False,
        )  # fmt: skip


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("wire, bound", [("int8", 1e-2), ("bfloat16", 4e-3)])
def test_keys_that_travel_compressed(gpu, wire, bound, degree):
    ring = exact(4, causal(), "zigzag", causal=True, compression=wire, bound=bound, ulysses_degree=degree)
    plain = exact(4, causal(), "zigzag", causal=True, ulysses_degree=degree)
    assert sum(ring.bytes_sent) < sum(plain.bytes_sent)


def attention_of_a_job():
    rank, size = ra._groups.runtime.place.rank, ra._groups.runtime.place.size
    torch.set_num_threads(1)
    calls = [
        (lambda *x, **o: ra.ring_attention(*x, causal=True, **o), causal(), "zigzag", 1e-6),
        (lambda *x, **o: ra.ring_attention(*x, causal=True, rotate="q", **o), causal(), "striped", 1e-6),
        (lambda *x, **o: ra.all_gather_attention(*x, **o), EVERYTHING, "contiguous", 1e-6),
        (lambda *x, **o: ra.ring_attention(*x, compression="int8", **o), EVERYTHING, "zigzag", 1e-2),
        (lambda *x, **o: ra.ulysses_attention(*x, causal=True, **o), causal(), "zigzag", 1e-6),
        (lambda *x, **o: ra.usp_attention(*x, ulysses_degree=2, causal=True, **o), causal(), "zigzag", 1e-6),
    ]
    for call, times, layout, bound in calls:
        q, k, v, dout = inputs()
        whole = [x.double().requires_grad_() for x in (q, k, v)]
        wanted, lse = dense(*whole, times)
        wanted.backward(dout.double())
        at = torch.from_numpy(ra.position_ids(LENGTH, layout, rank, size))
        shards = [x[:, at].clone().requires_grad_() for x in (q, k, v)]
        with FakeGpuOfAttention(rank):
            out, own_lse = call(*shards, layout=layout, length=LENGTH, return_lse=True)
            out.backward(dout[:, at])
        assert error(out.detach(), wanted.detach()[:, at]) <= bound, (times.shape, layout)
        assert torch.allclose(own_lse.detach().double(), lse.detach()[:, :, at], rtol=2 * bound, atol=2 * bound)
        for shard, full in zip(shards, whole):
            assert error(shard.grad, full.grad[:, at]) <= 2 * bound, layout


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_a_job_send_and_receive_by_their_gpus(size):
    outcome = run_ranks(size, attention_of_a_job, env=ENV)
    assert outcome.code == 0, outcome.output


def a_kernel_fails():
    from rueda.attention.device import _leaves

    rank = ra._groups.runtime.place.rank
    q, k, v, _ = inputs()
    at = torch.from_numpy(ra.position_ids(LENGTH, "contiguous", rank, 2))
    shards = [x[:, at] for x in (q, k, v)]
    with FakeGpuOfAttention(rank), pytest.MonkeyPatch.context() as changes:
        if rank == 1:
            changes.setattr(_leaves.Rank, "_WORK", {**_leaves.Rank._WORK, _leaves.p.ATTEND: _fails})
            with pytest.raises(MemoryError, match="no more"):
                ra.ring_attention(*shards, length=LENGTH)
        else:
            out = ra.ring_attention(*shards, length=LENGTH)
            assert out.shape == shards[0].shape
        hvd.barrier()  # the other rank has what was on its way


def _fails(rank, step):
    raise MemoryError("there is no more")


def test_what_a_kernel_raises_comes_out_of_the_call():
    outcome = run_ranks(2, a_kernel_fails, env=ENV)
    assert outcome.code == 0, outcome.output


def test_a_call_without_memory_says_so(gpu, monkeypatch):
    from rueda.attention.device import _leaves

    def no_memory(rank, slot, size):
        raise torch.OutOfMemoryError(f"{size} bytes")

    monkeypatch.setattr(_leaves.Rank, "take", no_memory)
    ring = ra.VirtualRing(2)
    with pytest.raises(torch.OutOfMemoryError, match="bytes"):
        ring.attention(*(ring.shard(x) for x in inputs()[:3]))
