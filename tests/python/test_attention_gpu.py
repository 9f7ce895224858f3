"""Attention of GPU tensors through the executor of GPUs: streams, events and messages of the fake driver and the stub of NCCL
(`fake_gpu.py`), kernels that compute on the host, all against dense attention in float64."""

import os
import subprocess
import sys

import pytest
import rueda as hvd
import rueda.attention as ra
import torch
from attention_oracle import LENGTH, causal, dense, dilated, error, inputs
from rueda.attention.device import _ring
from expect import raises
from rueda.torch import _compiler
from fake_gpu import ENV, FakeGpuOfAttention, needs_stubs
from test_attention import wrong_arguments_of_one_rank
from test_attention_device import EVERYTHING, OF_EACH, SLOPES, exact, one_thread, packed, window  # noqa: F401
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
    ("softcap and slopes", dict(causal=True, softcap=2.0, alibi_slopes=SLOPES), causal()),
    ("slopes of some heads", dict(ulysses_degree=2, rotate_backward="q", alibi_slopes=OF_EACH), EVERYTHING),
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
    changed = [
        (dict(softcap=2.0), lambda *x, **o: ra.ring_attention(*x, causal=True, **o), causal(), "zigzag", 1e-6),
        (dict(softcap=1.5, alibi_slopes=SLOPES), lambda *x, **o: ra.usp_attention(*x, ulysses_degree=2, **o), EVERYTHING, "striped", 1e-6),
    ]
    for scores, call, times, layout, bound in [({}, *plain) for plain in calls] + changed:
        q, k, v, dout = inputs()
        whole = [x.double().requires_grad_() for x in (q, k, v)]
        wanted, lse = dense(*whole, times, scores.get("softcap", 0.0), scores.get("alibi_slopes"))
        wanted.backward(dout.double())
        at = torch.from_numpy(ra.position_ids(LENGTH, layout, rank, size))
        shards = [x[:, at].clone().requires_grad_() for x in (q, k, v)]
        with FakeGpuOfAttention(rank):
            out, own_lse = call(*shards, layout=layout, length=LENGTH, return_lse=True, **scores)
            out.backward(dout[:, at])
        assert error(out.detach(), wanted.detach()[:, at]) <= bound, (times.shape, layout)
        assert torch.allclose(own_lse.detach().double(), lse.detach()[:, :, at], rtol=2 * bound, atol=2 * bound)
        for shard, full in zip(shards, whole):
            assert error(shard.grad, full.grad[:, at]) <= 2 * bound, layout


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_a_job_send_and_receive_by_their_gpus(size):
    outcome = run_ranks(size, attention_of_a_job, env=ENV)
    assert outcome.code == 0, outcome.output


def compiled_attention_of_a_job():
    rank, size = ra._groups.runtime.place.rank, ra._groups.runtime.place.size
    torch.set_num_threads(1)
    spread = {"layout": "zigzag", "length": LENGTH}
    *qkv, dout = inputs()
    at = torch.from_numpy(ra.position_ids(LENGTH, "zigzag", rank, size))
    changed = {"softcap": 2.0, "alibi_slopes": SLOPES}

    def every_scheme(q, k, v):
        return [
            *ra.ring_attention(q, k, v, causal=True, return_lse=True, **spread),
            ra.ring_attention(q * 2, k, v, rotate="q", **changed, **spread),
            ra.ulysses_attention(q, k, v, causal=True, **spread),
        ]

    def alone(q, k, v):
        return [ra.ring_attention(q, k, v, causal=True, **spread)]

    asked = []  # of each pass: whether a library's kernel cannot be used

    class Chosen(_ring.Chosen):
        def __init__(self, q, wants_delta=False, *more, **options):
            asked.append(wants_delta)
            super().__init__(q, wants_delta, *more, **options)

    def run(function):
        shards = [x[:, at].clone().requires_grad_() for x in qkv]
        asked.clear()
        with FakeGpuOfAttention(rank), pytest.MonkeyPatch.context() as changes:
            changes.setattr(_ring, "Chosen", Chosen)
            outs = function(*shards)
            sum((out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum() for out in outs).backward()
        return [x.detach() for x in outs], [x.grad for x in shards], sorted(asked)

    for function in (every_scheme, alone):
        eager = run(function)
        for backend in ("eager", "aot_eager"):
            torch.compiler.reset()
            graph = torch.compile(function, backend=backend, fullgraph=True)
            for _ in range(2):
                outs, grads, wanted = run(graph)
                assert all(torch.equal(*pair) for pair in zip(outs, eager[0])), backend
                assert all(error(mine, right.double()) <= 1e-6 for mine, right in zip(grads, eager[1])), backend
                assert wanted == eager[2], (backend, wanted, eager[2])
    assert wanted == [False, False]  # nobody asked for a gradient of the log-sum-exp


@pytest.mark.skipif(_compiler.graph is None, reason="this PyTorch cannot keep calls in their order")
def test_graphs_give_the_same_bits_on_gpus():
    outcome = run_ranks(2, compiled_attention_of_a_job, env=ENV)
    assert outcome.code == 0, outcome.output


@pytest.mark.skipif(_compiler.graph is None, reason="this PyTorch cannot keep calls in their order")
def test_a_graph_knows_where_results_will_be():
    from rueda.attention import _graph
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k = (torch.empty(2, 10, heads, 16, dtype=torch.bfloat16, device="cuda:0") for heads in (4, 2))
        out, lse, kept = _graph._attention(q, k, k, 10, 0)
        grads = _graph._attention_backward(out, None, q, k, k, out, lse, kept, 10, 0)
    assert (out.device, out.dtype, out.shape) == (q.device, q.dtype, q.shape)
    assert (lse.device, lse.dtype, lse.shape) == (q.device, torch.float32, (2, 4, 10)) and kept.device.type == "cpu"
    assert [(x.device, x.shape) for x in grads] == [(x.device, x.shape) for x in (q, k, k)]


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
        with raises(hvd.HorovodInternalError, "rank 1", "the kernel of 'attend' failed", "MemoryError: there is no more"):
            if rank == 0:
                ra.ring_attention(*shards, length=LENGTH)  # may have what was on its way
            hvd.barrier()


def _fails(rank, step):
    raise MemoryError("there is no more")


def test_what_a_kernel_raises_comes_out_of_the_call():
    outcome = run_ranks(2, a_kernel_fails, env=ENV)
    assert outcome.code == 0, outcome.output


def wrong_arguments_on_gpus():
    with FakeGpuOfAttention(hvd.rank()):
        wrong_arguments_of_one_rank()


def test_wrong_arguments_of_one_rank_are_told_to_the_others():
    outcome = run_ranks(3, wrong_arguments_on_gpus, env=ENV)
    assert outcome.code == 0, outcome.output


WITHOUT_A_JOB = '''
import rueda.attention as ra, torch
from fake_gpu import FakeGpuOfAttention
with FakeGpuOfAttention(0):
    ring = ra.VirtualRing(2)
    try:
        ring.attention(*[[torch.ones(1, 4, 1, 8)] * 2] * 3)
        print("no error")
    except ValueError as error:
        print(error)
'''


def test_a_gpu_without_a_job_is_opened_by_the_settings():
    """Those of every job: one that is wrong is refused by name."""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, **ENV, "PYTHONPATH": path, "RUEDA_DEAD_SECONDS": "never"}
    run = subprocess.run([sys.executable, "-c", WITHOUT_A_JOB], env=environment, capture_output=True, text=True, timeout=300)
    assert "RUEDA_DEAD_SECONDS='never'" in run.stdout, run.stdout + run.stderr


def test_a_call_without_memory_says_so(gpu, monkeypatch):
    from rueda.attention.device import _leaves

    def no_memory(rank, slot, size):
        raise torch.OutOfMemoryError(f"{size} bytes")

    monkeypatch.setattr(_leaves.Rank, "take", no_memory)
    ring = ra.VirtualRing(2)
    with pytest.raises(torch.OutOfMemoryError, match="bytes"):
        ring.attention(*(ring.shard(x) for x in inputs()[:3]))
