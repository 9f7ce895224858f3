"""`decode_attention` of GPU tensors: the same calls as on CPUs, whose work is called back, against softmax in float64: on tensors of the host,
and in the streams of the fake driver with messages through the stub of NCCL (`fake_gpu.py`)."""

import contextlib
import inspect
import sys
import types

import numpy as np
import pytest
import rueda as hvd
import rueda.attention as ra
import torch
from expect import raises
from fake_gpu import ENV, FakeGpuOfAttention, needs_stubs
from rueda.attention import device
from rueda.attention._groups import local
from rueda.attention.device import _cache_kernels, _decode, _ring
from test_attention_decode import CASES, caches, close, expected, options_of, paged, problem, prompts_in_chunks
from worlds import ranks, run_ranks

WORLD = "torch"
SCORES = [
    {"softcap": 2.0, "left": 11, "global_tokens": 3},
    {"alibi_slopes": [0.1, 0.2, 0.0, -0.3, 1.0, 0.5], "softcap": 3.0},
    {"alibi_slopes": np.linspace(0, 1, 30).reshape(5, 6), "causal": False, "sinks": [0.5] * 6},
]
DTYPES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@contextlib.contextmanager
def on_host():
    """Tensors of the host are taken for those of a GPU, without a driver."""
    _ring._on_cpu = True
    try:
        yield
    finally:
        _ring._on_cpu = False


def narrow(arrays, dtype):
    return [torch.from_numpy(x).to(dtype) for x in arrays]


def rounded(arrays, dtype):
    return [torch.from_numpy(x).to(dtype).float().numpy() for x in arrays]


def check(lengths, case, seed, tokens=3, queries="same", dtype=torch.float32, form="plain", heads=(6, 2), dim=20):
    """This rank's result is softmax over the whole, in float64."""
    rank, size = hvd.rank(), hvd.size()
    q, k, v = problem(seed, lengths, tokens, *heads, dim)
    wanted = expected(*rounded([q], dtype), rounded(k, dtype), rounded(v, dtype), lengths, **case)
    own = slice(None)
    if queries == "own":
        bounds = np.cumsum([0, *(len(part) for part in np.array_split(lengths, size))])
        own = slice(bounds[rank], bounds[rank + 1])
    cache, options = caches(k, v, rank, size), options_of(case)
    if form != "plain":
        cache, table = paged(cache, 4, seed)
        table[np.array(lengths) == 0] = 99  # what is of no token is not looked at
        options["block_table"] = torch.from_numpy(table) if form == "table on the device" else table
    result = ra.decode_attention(
        *narrow([q[own], *cache], dtype), lengths, queries=queries, return_lse=True, **options
    )
    assert result[0].dtype == dtype and result[1].dtype == torch.float32
    for got, right in zip(result, wanted):
        np.testing.assert_allclose(got.float().numpy(), right[own], rtol=DTYPES[dtype], atol=DTYPES[dtype], err_msg=f"{case} {form}")
    return result


def every_case():
    """All masks, tables, dtypes and ways to share queries."""
    forms = ["plain", "paged", "table on the device"]
    for seed, case in enumerate(CASES + SCORES):
        check([5, 0, 64, 3, 31], case, seed, form=forms[seed % 3])
        check([9, 30, 33, 0, 1], case, seed, tokens=1, queries="own", form=forms[(seed + 1) % 3])
    for dtype in DTYPES:
        check([40, 21], {"sinks": torch.tensor([0.5, 1.0, -2.0, 0.0])}, 7, tokens=2, heads=(4, 4), dim=7, dtype=dtype)
        check([40, 21], {"left": 13}, 7, tokens=2, heads=(4, 1), dim=33, dtype=dtype, queries="own", form="paged")
    check([0, 0], {}, 1)


@ranks(1, 2, 3)
def test_every_case_on_the_host():
    torch.set_num_threads(1)
    with on_host():
        every_case()


@ranks(2)
def test_keys_are_taken_some_at_a_time():
    torch.set_num_threads(1)
    with on_host(), pytest.MonkeyPatch.context() as changes:
        changes.setattr(_cache_kernels, "_ELEMENTS", 600)  # of 5 sequences, 2 heads, 20 elements: 3 keys
        for seed, case in enumerate(CASES):
            check([5, 0, 64, 3, 31], case, seed, form=("plain", "paged")[seed % 2])


@ranks(2)
def test_bytes_are_those_of_the_same_call_on_the_cpu():
    """And the result, but for the order of additions."""
    q, k, v = problem(4, [300, 70], 1, 4, 2, 16)
    tensors = narrow([q, *caches(k, v, hvd.rank(), hvd.size())], torch.float32)
    sent, results = [], []
    for place in (contextlib.nullcontext, on_host):
        before = hvd.counter("shm_bytes")
        with place():
            results.append(ra.decode_attention(*tensors, [300, 70]))
        sent.append(hvd.counter("shm_bytes") - before)
    assert sent[0] == sent[1]
    assert torch.allclose(*results, rtol=1e-5, atol=1e-5)


def on_fake_gpus():
    torch.set_num_threads(1)
    with FakeGpuOfAttention(hvd.rank()):
        every_case()
        prompts_in_chunks()
        q, k, v = problem(3, [20, 30], 1, 4, 2, 16)
        tensors = narrow([q, *caches(k, v, hvd.rank(), hvd.size())], torch.float32)
        request = ra.decode_attention(*tensors, [20, 30], async_op=True)
        assert request.done()
        close([request.wait()], expected(q, k, v, [20, 30])[:1])


@needs_stubs
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_send_and_receive_by_their_gpus(size):
    outcome = run_ranks(size, on_fake_gpus, env=ENV)
    assert outcome.code == 0, outcome.output


def wrong_arguments():
    """Each is an error on all ranks, and the next call goes on."""
    rank, size = hvd.rank(), hvd.size()
    lengths = [12, 30]
    q, k, v = problem(1, lengths, 2, 4, 2, 8)
    tensors = narrow([q, *caches(k, v, rank, size)], torch.float32)

    def call(**options):
        return ra.decode_attention(*tensors, **{"lengths": lengths, **options})

    wrong = [
        ({"lengths": [12, 1]}, "the length of sequence 1 is 1: it counts the 2 new tokens"),
        ({"lengths": [12, 300]}, "sequence 1 has 150 tokens on this rank, its cache has room for 16"),
        ({"global_tokens": 3}, "global_tokens says what is seen beyond a window"),
        ({"queries": "own"}, "q has 2 sequences, expected 1: rank"),
        ({"block_table": np.array([[0], [7]]), "lengths": [12, 12]}, "the block table names block 7 for sequence 1, of 2"),
        ({"block_table": torch.tensor([[0], [7]]), "lengths": [12, 60]}, "sequence 1 has 30 tokens on this rank, its cache has room for 16"),
    ]
    for options, text in wrong:
        with raises(ValueError, text):
            call(**options)
    for options, text in wrong[1:]:  # on one rank alone: the other is told
        with raises(ValueError, text) if rank == 1 else raises(Exception, "do all ranks call the same attention"):
            call(**(options if rank == 1 else {}))
    with raises(Exception, "do all ranks call the same attention"):
        call(causal=rank == 0)
    close([call()], expected(q, k, v, lengths)[:1])


@ranks(2)
def test_wrong_arguments_are_errors_on_all_ranks():
    with on_host():
        wrong_arguments()


def wrong_on_fake_gpus():
    with FakeGpuOfAttention(hvd.rank()):
        wrong_arguments()


@needs_stubs
def test_wrong_arguments_are_told_by_gpus():
    outcome = run_ranks(2, wrong_on_fake_gpus, env=ENV)
    assert outcome.code == 0, outcome.output


def a_kernel_fails_in_its_stream():
    """The others, who wait for it, and whatever comes behind it, get the rank and the reason, while the rank lives."""
    rank, size = hvd.rank(), hvd.size()
    q, k, v = problem(1, [12, 30], 2, 4, 2, 8)
    tensors = narrow([q, *caches(k, v, rank, size)], torch.float32)
    kept = []  # a GPU that has failed writes nothing more; the fake one does, where messages come
    take = _decode.Decode.take

    def take_and_keep(call, slot, size):
        address = take(call, slot, size)
        kept.append(call._slots[slot])
        return address

    with FakeGpuOfAttention(rank) as gpu, pytest.MonkeyPatch.context() as changes:
        changes.setattr(_decode.Decode, "take", take_and_keep)
        with raises(hvd.HorovodInternalError, *["rank 1"] * (rank != 1), "CUDA_ERROR_LAUNCH_FAILED"):
            ra.decode_attention(*tensors, [12, 30])  # on the others it may not have ended when rank 1 is in the next
            if rank == 1:
                changes.setattr(_decode.Decode, "_WORK", {**_decode.Decode._WORK, _decode.ATTEND: lambda call: gpu.break_down()})
            ra.decode_attention(*tensors, [12, 30])
        with raises(hvd.HorovodInternalError, "rank 1", "CUDA_ERROR_LAUNCH_FAILED"):
            hvd.barrier()


@needs_stubs
def test_a_kernel_that_fails_in_its_stream_ends_the_call_on_all():
    outcome = run_ranks(3, a_kernel_fails_in_its_stream, env=ENV)
    assert outcome.code == 0, outcome.output


def test_what_is_refused_before_anything_travels():
    q, k, v = problem(1, [12, 30], 2, 4, 2, 8)
    tensors = narrow([q, *caches(k, v, 0, 1)], torch.float32)
    with on_host():
        for options, text in (
            ({"lengths": torch.empty(2, device="meta")}, "lengths are on meta: give numbers of the host"),
            ({"lengths": [12, 30], "block_table": torch.zeros(2, 1)}, "block_table is torch.float32, expected int32"),
            ({"lengths": [12, 30], "block_table": torch.zeros(3, 1, dtype=torch.int32)}, "block_table is (3, 1)"),
            ({"lengths": [12, 30], "sinks": torch.zeros(3)}, "there are 3 sinks"),
        ):
            with raises(ValueError, text):
                ra.decode_attention(*tensors, process_set=local, **options)


def over_cache(q, k_cache, v_cache, counts, table, scale, softcap):
    """Attention over the first tokens of each sequence, with flash-attn's habits: without keys the log-sum-exp is +infinity, and out
    anything."""
    out, lse = torch.full_like(q, torch.nan), torch.full((q.shape[0], q.shape[2], q.shape[1]), torch.inf)
    group = q.shape[2] // k_cache.shape[2]
    for b, count in enumerate(counts.tolist()):
        if not count:
            continue
        if table is not None:
            used = table[b, : -(-count // k_cache.shape[1])].long()
        k, v = (x[b] if table is None else x[used].flatten(0, 1) for x in (k_cache, v_cache))
        k, v = (x[:count].double().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[b].double(), k) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        lse[b] = torch.logsumexp(scores, -1)
        out[b] = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v).to(q.dtype)
    return out, lse


def flash2(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, cache_leftpad=None, block_table=None, softmax_scale=None,
           causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, num_splits=0, return_softmax_lse=False):  # fmt: skip
    """The arguments of flash-attn 2."""
    assert not causal and return_softmax_lse and cache_seqlens.dtype == torch.int32
    assert block_table is None or block_table.dtype == torch.int32 and k_cache.shape[1] % 256 == 0
    return over_cache(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, softcap)


def flash3(q, k_cache, v_cache, k=None, v=None, qv=None, cache_seqlens=None, page_table=None, softmax_scale=None,
           causal=False, attention_chunk=0, softcap=0.0, num_splits=0, pack_gqa=None, return_softmax_lse=False):  # fmt: skip
    """Those of FlashAttention-3, which gives more results."""
    assert not causal and return_softmax_lse and cache_seqlens.dtype == torch.int32
    return *over_cache(q, k_cache, v_cache, cache_seqlens, page_table, softmax_scale, softcap), None, None


LIBRARIES = {
    "flash2": (_cache_kernels.Flash2, "flash_attn.flash_attn_interface", flash2),
    "flash3": (_cache_kernels.Flash3, "flash_attn_interface", flash3),
}


@contextlib.contextmanager
def library(name):
    """A contribution with the library's name, arguments and habits; counts its calls."""
    kind, module, function = LIBRARIES[name]
    calls = []

    def counted(*arguments, **named):
        calls.append({**dict(zip(("q", "k_cache", "v_cache"), arguments)), **named})
        return function(*arguments, **named)

    counted.__signature__ = inspect.signature(function)
    with pytest.MonkeyPatch.context() as changes:
        changes.setitem(sys.modules, module.split(".")[0], types.ModuleType(module.split(".")[0]))
        changes.setitem(sys.modules, module, types.SimpleNamespace(flash_attn_with_kvcache=counted))
        kernel = kind()
        changes.setattr(kind, "device", "cpu")
        changes.setattr(_cache_kernels, "KERNELS", [kernel])
        yield calls


@ranks(1, 2)
def test_libraries_take_what_all_queries_see():
    torch.set_num_threads(1)
    half = torch.float16
    for name in LIBRARIES:
        with on_host(), library(name) as calls:
            for seed, (case, tokens, form, count) in enumerate([
                ({}, 1, "plain", 1),
                ({}, 4, "plain", 1),
                ({"causal": False}, 3, "plain", 1),
                ({"sinks": [0.5] * 6, "softcap": 2.0}, 2, "plain", 1),
                ({"left": 9, "global_tokens": 5}, 2, "plain", 1),
                ({"left": 9}, 2, "plain", 0),
                ({"alibi_slopes": [0.1] * 6}, 2, "plain", 0),
                ({}, 2, "paged", int(name == "flash3")),  # blocks of 4 tokens
            ]):  # fmt: skip
                calls.clear()
                check([5, 0, 64, 4, 31], case, seed, tokens=tokens, form=form, dtype=half, dim=16)
                assert len(calls) == count, (name, case, form)
            calls.clear()
            check([5, 0, 64, 4, 31], {}, 1, dtype=half, dim=20)  # no multiple of 8
            check([5, 0, 64, 4, 31], {}, 1, dim=16)  # float32
            assert not calls


def test_blocks_that_a_library_takes():
    q, k, v = problem(2, [700, 0, 300], 2, 4, 2, 16)
    blocks, table = paged(caches(k, v, 0, 1), 256, 3)
    tensors = [torch.nan_to_num(x) for x in narrow([q, *blocks], torch.float16)]
    with on_host(), library("flash2") as calls:
        result = ra.decode_attention(*tensors, [700, 0, 300], block_table=table, process_set=local, return_lse=True)
    assert [call["cache_seqlens"].tolist() for call in calls] == [[699, 0, 299]]
    wanted = expected(*rounded([q], torch.float16), rounded(k, torch.float16), rounded(v, torch.float16), [700, 0, 300])
    close([x.float() for x in result], wanted, np.float16)


def test_the_kernel_that_was_asked_for_computes():
    q, k, v = problem(2, [70], 1, 2, 2, 16)
    tensors = narrow([q, *caches(k, v, 0, 1)], torch.float16)
    with on_host(), library("flash2") as calls:
        for name, count in (("torch", 0), ("auto", 1)):
            device.use_kernel(name, device="cpu")
            try:
                ra.decode_attention(*tensors, [70], process_set=local)
            finally:
                device.use_kernel("auto", device="cpu")
            assert len(calls) == count


@pytest.mark.parametrize("rank, size", [(0, 1), (1, 3)])
@pytest.mark.parametrize("form", ["plain", "paged"])
def test_the_host_reads_nothing_back(rank, size, form, monkeypatch):
    """Tensors of no device (meta) have nothing to read."""
    lengths = [9, 0, 40, 33]
    q, k, v = problem(2, lengths, 3, 4, 2, 16)
    cache = caches(k, v, rank, size)
    for case in (*CASES[:5], {"alibi_slopes": [0.5] * 4, "softcap": 2.0}, {"sinks": [1.0] * 4}):
        options = options_of(case)
        cached, table = (cache, None) if form == "plain" else paged(cache, 4, 1)
        if table is not None:
            options["block_table"] = torch.from_numpy(table).to("meta")
        tensors = [torch.from_numpy(x).to("meta") for x in (q, *cached)]
        steps = []

        def run(call, process_set_id, is_local, steps=steps):
            call.rank, call.ranks = rank, size
            count, width = call._rows(rank)[1], call.spec.head_dim + 2
            sizes = {_decode.PARTIAL: 4 * 4 * 3 * 4 * width, _decode.CAME: 4 * (size - 1) * count * width}
            sizes[_decode.RESULTS] = size * call._work()[1]
            for slot, bytes_of in sizes.items():
                call.take(slot, bytes_of)
            for step in _decode.STEPS[1:]:
                call.perform(step)
                steps.append(step)

        monkeypatch.setattr(_decode, "run_decode", run)
        monkeypatch.setattr(_ring, "_on_cpu", True)
        monkeypatch.setattr(ra._decode, "_DEVICES", ("meta",))
        out, lse = ra.decode_attention(*tensors, lengths, process_set=local, return_lse=True, **options)
        assert out.shape == q.shape and lse.shape == (4, 4, 3) and len(steps) == 3
