"""Distributed attention against dense attention in float64, on real ranks."""

import gc
import os
import pathlib
import re
import signal
import subprocess
from xml.etree import ElementTree

import numpy as np
import pytest
import rueda as hvd
import rueda.attention as ra
import torch
from attention_oracle import (
    LENGTH,
    blocks_of,
    causal,
    check,
    dense,
    dilated,
    error,
    inputs,
)
from expect import eventually, raises
from rueda.common.exceptions import DeadlineExceeded
from worlds import kill_once_all_are_here, ranks, results, ruedarun, run_ranks

WORLD = "torch"


@ranks(1, 3)
def test_every_scheme_gives_the_exact_result_and_gradients():
    size = hvd.size()
    for layout in ("contiguous", "zigzag", "striped"):
        # Each variant with one layout; all of them with all: tests/attention.
        more = {"zigzag": ({"rotate": "q"},), "striped": ({"chunk_tokens": 4},)}.get(layout, ())
        for options in ({}, *more):
            check(lambda *x, **o: ra.ring_attention(*x, causal=True, **o, **options), causal(), layout)
        check(lambda *x, **o: ra.ulysses_attention(*x, causal=True, **o), causal(), layout)
    check(ra.ring_attention, torch.ones(1, LENGTH, LENGTH))
    check(ra.all_gather_attention, torch.ones(1, LENGTH, LENGTH), "striped")
    check(lambda *x, **o: ra.usp_attention(*x, ulysses_degree=size, causal=True, **o), causal())
    i = torch.arange(LENGTH)
    band = ((i[:, None] - i <= 9) & (i - i[:, None] <= 3)).float()[None]
    check(lambda *x, **o: ra.ring_attention(*x, window_size=(9, 3), **o), band, "zigzag")
    # Heads that the ranks do not divide; fewer KV heads than ranks.
    check(ra.ulysses_attention, torch.ones(1, LENGTH, LENGTH), heads=5, kv_heads=1)


@ranks(4)
def test_hybrid_of_exchange_and_ring():
    check(
        lambda *x, **o: ra.usp_attention(*x, ulysses_degree=2, causal=True, **o), causal(), "zigzag"
    )
    q, k, v, _ = (ra.shard_sequence(x) for x in inputs())
    one, same = (
        ra.usp_attention(q, k, v, **degrees)
        for degrees in ({"ulysses_degree": 2}, {"ring_degree": 2, "ulysses_degree": None})
    )
    assert torch.equal(one, same)
    for degrees in ({"ring_degree": 3}, {"ring_degree": 2, "ulysses_degree": 4}):
        with raises(ValueError, "their product must be the 4 ranks"):
            ra.usp_attention(q, k, v, **degrees)
    with raises(ValueError, "needs ulysses_degree or ring_degree"):
        ra.usp_attention(q, k, v)


@ranks(2)
def test_dilated_attention_is_one_softmax_over_all_pairs():
    pairs = [(8, 1), (24, 3)]
    lengths, rates = zip(*pairs)
    for layout in ("contiguous", "striped"):
        check(
            lambda *x, **o: ra.ring_dilated_attention(*x, lengths, rates, causal=True, **o),
            dilated(pairs) * causal(),
            layout,
        )
    check(
        lambda *x, **o: ra.ring_dilated_attention(*x, lengths, rates, head_groups="split", **o),
        dilated(pairs, head_groups="split"),
    )
    mask = ra.BlockMask.random(LENGTH, 8, density=0.5, seed=3)
    check(
        lambda *x, **o: ra.ring_dilated_attention(*x, lengths, rates, block_mask=mask, **o),
        dilated(pairs) * blocks_of(mask),
        "zigzag",
    )


@ranks(2)
def test_detached_mixing_weights_have_no_gradient():
    pairs = [(8, 1), (24, 2)]
    *qkv, dout = inputs()
    whole = [x.clone().double().requires_grad_() for x in qkv]
    t = torch.arange(LENGTH)
    outs, lses = [], []
    for w, r in pairs:
        times = torch.zeros(4, LENGTH, LENGTH)
        for head in range(4):
            chosen = t % w % r == head // 2 % r
            times[head] += chosen[:, None] & chosen & (t[:, None] // w == t // w)
        out, lse = dense(*whole, times * causal())
        outs.append(out)
        lses.append(lse.detach())
    weights = torch.softmax(torch.stack(lses), 0).transpose(2, 3).unsqueeze(-1)
    wanted = sum(weight * out for weight, out in zip(weights, outs))
    wanted.backward(dout.double())
    shards = [ra.shard_sequence(x).requires_grad_() for x in qkv]
    lengths, rates = zip(*pairs)
    options = {"causal": True, "return_lse": True}
    out, lse = ra.ring_dilated_attention(*shards, lengths, rates, mix_grad="detached", **options)
    exact, exact_lse = ra.ring_dilated_attention(*shards, lengths, rates, **options)
    assert error(out.detach(), exact.detach().double()) <= 1e-6
    assert error(lse, exact_lse.detach().double()) <= 1e-6
    out.backward(ra.shard_sequence(dout))
    for shard, full in zip(shards, whole):
        assert error(ra.unshard_sequence(shard.grad, length=LENGTH), full.grad) <= 2e-6
    with raises(ValueError, "'exact' or 'detached'"):
        ra.ring_dilated_attention(*shards, lengths, rates, mix_grad="none")


@ranks(2)
def test_block_masks_from_a_density_and_a_seed():
    names = ["random", "local_window", "dilated_sparse", "global_local", "strided", "hierarchical"]
    masks = [
        ra.BlockMask.pattern(name, LENGTH, 4, density=0.3, seed=5, window=12, global_tokens=4)
        for name in names
    ]
    same = hvd.allgather_object([mask.bytes for mask in masks])
    assert same[0] == same[1] and len(set(same[0])) == len(names)
    for name, mask in zip(names, masks):
        assert abs(mask.density - 0.3) < 0.01 or name == "random", (name, mask.density)
        assert mask.dense[0].diagonal().all()
    for mask in masks[:2]:
        check(
            lambda *x, **o: ra.ring_block_sparse_attention(*x, mask, **o),
            blocks_of(mask),
            "zigzag",
        )


@ranks(2)
def test_packed_sequences():
    ends = [0, 10, 11, 40, LENGTH]
    t = torch.arange(LENGTH)
    which = torch.bucketize(t, torch.tensor(ends[1:]), right=True)
    q, k, v, _ = inputs(batch=1)
    wanted, _ = dense(q, k, v, ((which[:, None] == which).float() * causal()[0])[None])
    shards = [ra.shard_sequence(x, layout="striped")[0] for x in (q, k, v)]
    out = ra.ring_attention_varlen(*shards, ends, causal=True)
    assert error(ra.unshard_sequence(out[None], layout="striped", length=LENGTH), wanted) <= 1e-6
    # Each sequence spread by itself.
    mine = torch.from_numpy(ra.position_ids(layout="zigzag", cu_seqlens=ends))
    out = ra.ring_attention_varlen(
        *(x[0, mine] for x in (q, k, v)), ends, ends, 29, 29, causal=True, layout="zigzag",
        layout_of="sequence",
    )  # fmt: skip
    assert error(out, wanted[0, mine]) <= 1e-6
    with raises(ValueError, "each sequence needs its queries and its keys"):
        ra.ring_attention_varlen(*shards, ends, [0, LENGTH], causal=True)


@ranks(2)
def test_both_orders_of_dimensions_and_asynchronous_calls():
    q, k, v, dout = (ra.shard_sequence(x, layout="zigzag") for x in inputs())
    options = {"causal": True, "layout": "zigzag"}
    both = []
    for heads_first in (False, True):
        own = [x.transpose(1, 2) if heads_first else x for x in (q, k, v)]
        own = [x.clone().requires_grad_() for x in own]
        order = {"qkv_format": "bhsd"} if heads_first else {}
        requests = [ra.ring_attention(*own, **options, **order, async_op=True) for _ in range(2)]
        out = requests[1].wait() + requests[0].wait(60)
        assert requests[0].done() and requests[1].done()
        out.backward(dout.transpose(1, 2) if heads_first else dout)
        found = [out.detach(), *(x.grad for x in own)]
        both.append([x.transpose(1, 2) if heads_first else x for x in found])
    assert all(torch.equal(a, b) for a, b in zip(*both))
    assert torch.equal(both[0][0], 2 * ra.ring_attention(q, k, v, **options))
    request = ra.ring_attention(*(x.numpy() for x in (q, k, v)), **options, async_op=True)
    assert np.array_equal(2 * request.wait(), both[0][0].numpy())
    with raises(ValueError, "expected 'bshd' or 'bhsd'"):
        ra.ring_attention(q, k, v, qkv_format="sbhd")


@ranks(3)
def test_heads_are_exchanged_around_any_local_attention():
    def local(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2)

    for heads, kv_heads in ((6, 3), (7, 7), (4, 2), (2, 1)):
        *qkv, dout = inputs(heads=heads, kv_heads=kv_heads)
        whole = [x.double().requires_grad_() for x in qkv]
        wanted, _ = dense(*whole, causal())
        wanted.backward(dout.double())
        for layout in ("contiguous", "zigzag"):
            own = [ra.shard_sequence(x, layout=layout).requires_grad_() for x in qkv]
            out = ra.ulysses_attention(*own, layout=layout, local_attention=local)
            out.backward(ra.shard_sequence(dout, layout=layout))
            for got, full in zip((out.detach(), *(x.grad for x in own)),
                                 (wanted.detach(), *(x.grad for x in whole))):  # fmt: skip
                together = ra.unshard_sequence(got, layout=layout, length=LENGTH)
                assert error(together, full) <= 2e-6, (heads, kv_heads, layout)


@ranks(2)
def test_numpy_half_precision_and_compression():
    q, k, v, _ = inputs()
    wanted, _ = dense(q, k, v, causal())
    arrays = [ra.shard_sequence(x.numpy(), layout="zigzag") for x in (q, k, v)]
    out = ra.ring_attention(*arrays, causal=True, layout="zigzag")
    whole = ra.unshard_sequence(out, layout="zigzag", length=LENGTH)
    assert isinstance(whole, np.ndarray) and error(torch.from_numpy(whole), wanted) <= 1e-6
    shards = [ra.shard_sequence(x, layout="zigzag") for x in (q, k, v)]
    options = {"causal": True, "layout": "zigzag"}
    rough = ra.ring_attention(*shards, compression="bfloat16", **options)
    assert 1e-6 < error(ra.unshard_sequence(rough, layout="zigzag"), wanted) <= 4e-3
    for dtype in (torch.bfloat16, torch.float16):
        half = [x.to(dtype) for x in (q, k, v)]
        exact, _ = dense(*half, causal())
        shards = [ra.shard_sequence(x, layout="zigzag") for x in half]
        out = ra.unshard_sequence(ra.ring_attention(*shards, **options), layout="zigzag")
        assert out.dtype == dtype and error(out, exact) <= 4e-3


@ranks(2)
def test_merging_results_over_two_sets_of_keys():
    q, k, v, _ = inputs()
    parts = []
    for allowed in (causal(), 1 - causal()):
        mask = ra.BlockMask(allowed[0].numpy(), LENGTH, 1)
        parts += ra.block_sparse_attention(q, k, v, mask, return_lse=True)
    wanted, lse = dense(q, k, v, torch.ones(1, LENGTH, LENGTH))
    for make in (lambda x: x, lambda x: x.numpy()):
        out, merged = ra.merge_attention(*map(make, parts))
        assert error(torch.as_tensor(out), wanted) <= 1e-6
        assert error(torch.as_tensor(merged), lse) <= 2e-6


@ranks(3)
def test_mistakes_are_errors_that_say_what_to_do():
    q, k, v, _ = inputs()
    shards = [ra.shard_sequence(x, layout="zigzag") for x in (q, k, v)]
    with raises(ValueError, "expected one of 'contiguous'"):
        ra.ring_attention(*shards, layout="spiral")
    with raises(ValueError, "use shard_sequence"):
        ra.ring_attention(q, k, v, length=LENGTH)
    with raises(ValueError, "no multiple of"):
        ra.ring_attention(shards[0][:, :, :3].contiguous(), *shards[1:], layout="zigzag")
    with raises(ValueError, "'float64', expected"):
        ra.ring_attention(*(x.double() for x in shards), layout="zigzag")
    with raises(ValueError, "does not divide"):
        ra.usp_attention(*shards, ulysses_degree=2, layout="zigzag")


def attends_until_one_is_killed():
    q, k, v, _ = inputs()
    shards = [ra.shard_sequence(x, layout="zigzag").requires_grad_() for x in (q, k, v)]
    ra.ring_attention(*shards, causal=True, layout="zigzag", length=LENGTH)
    kill_once_all_are_here(1)
    ra.ring_attention(*shards, causal=True, layout="zigzag", length=LENGTH)


def test_a_killed_rank_is_named_with_the_step():
    outcome = run_ranks(3, attends_until_one_is_killed)
    assert outcome.code != 0
    told = [r["attends_until_one_is_killed"] for r in outcome.reports if r]
    assert told, outcome.output
    for report in told:
        assert "HorovodInternalError" in report["types"], report
        assert "attention forward, step" in report["error"], report
        assert "rank 1" in report["error"], report


def test_plans_can_be_looked_at_without_a_job():
    plan = ra.AttentionPlan(
        rank=3, ranks=8, length=4096, heads=8, kv_heads=2, head_dim=64, layout="zigzag", causal=True
    )
    assert plan.tokens == 512 and plan.steps == 8
    assert plan.balance <= 1.01
    ring = 7 * 512 * 2 * 2 * 64 * 4
    full = ra.AttentionPlan(rank=3, ranks=8, length=4096, heads=8, kv_heads=2, head_dim=64)
    assert full.bytes_sent_forward == ring
    with pytest.raises(ValueError, match="no rank 8"):
        ra.AttentionPlan(rank=8, ranks=8, length=64, heads=1, head_dim=8)


def test_local_operations_need_no_job():
    *qkv, dout = inputs()
    pairs = [(8, 1), (24, 3)]
    mask = ra.BlockMask.local_window(LENGTH, 8, 16)
    calls = [
        (lambda *x: ra.dilated_attention(*x, *zip(*pairs), causal=True), dilated(pairs) * causal()),
        (lambda *x: ra.block_sparse_attention(*x, mask), blocks_of(mask)),
    ]
    for call, times in calls:
        whole = [x.double().requires_grad_() for x in qkv]
        wanted, _ = dense(*whole, times)
        wanted.backward(dout.double())
        own = [x.clone().requires_grad_() for x in qkv]
        out = call(*own)
        assert error(out.detach(), wanted.detach()) <= 1e-6
        out.backward(dout)
        for got, full in zip(own, whole):
            assert error(got.grad, full.grad) <= 2e-6
        assert np.array_equal(call(*(x.numpy() for x in qkv)), out.detach().numpy())


def test_layouts_are_those_of_the_library():
    from rueda import _ffi
    from rueda.attention._layouts import LAYOUTS

    for layout, code in LAYOUTS.items():
        for length in (1, 2, 7, 16, 53):
            for world in (1, 2, 3, 8):
                for rank in range(world):
                    own = np.empty(length, np.int64)
                    count = _ffi.library.rueda_attention_tokens(
                        code, length, rank, world, np.ctypeslib.as_ctypes(own), length
                    )
                    positions = ra.position_ids(length, layout, rank, world)
                    assert np.array_equal(positions, own[:count]), (layout, length, world, rank)


def test_a_schedule_has_every_pair_once():
    seen = np.zeros((LENGTH, LENGTH), int)
    for rank in range(4):
        plan = ra.AttentionPlan(
            rank=rank, ranks=4, length=LENGTH, heads=1, head_dim=8, layout="zigzag", causal=True
        )
        assert len(plan.schedule()) == plan.tiles
        for tile in plan.schedule():
            q = tile.q + tile.q_step * np.arange(tile.q_count)
            k = tile.k + tile.k_step * np.arange(tile.k_count)
            inside = q[:, None] >= k
            assert inside.sum() == tile.pairs
            seen[np.ix_(q, k)] += inside
    assert np.array_equal(seen, np.tril(np.ones((LENGTH, LENGTH), int)))


def test_the_tool_prints_and_draws_plans(tmp_path):
    tool = pathlib.Path(ruedarun()).with_name("rueda")
    picture = tmp_path / "zigzag.svg"
    plan = "attention plan --ranks 4 --length 64 --causal --layout zigzag --svg"
    done = subprocess.run([tool, *plan.split(), picture], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    known = ra.AttentionPlan(
        rank=0, ranks=4, length=64, heads=1, head_dim=64, layout="zigzag", causal=True
    )
    assert f"plan {known.hash:016x}" in done.stdout
    assert "step 3\n" in done.stdout and "step 4\n" not in done.stdout
    root = ElementTree.parse(picture).getroot()
    steps = [group for group in root if group.tag.endswith("}g")]
    areas = [
        sum(
            int(width)
            for path in group
            if path.get("class") == "work"
            for width in re.findall(r"h(\d+)", path.get("d"))
        )
        for group in steps
    ]
    # Every pair of the causal mask, once; in each step as much as in the others but the first.
    assert sum(areas) == 64 * 65 // 2, areas
    assert areas[1:] == [4 * 16 * 16 // 2] * 3, areas
    for options, complaint in (
        ("--ranks 4 --ulysses-degree 3", "does not divide"),
        ("--segment-lengths 8", "are pairs"),
        ("--layout spiral", "spiral"),
    ):
        wrong = subprocess.run(
            [tool, "attention", "plan", *options.split()], text=True, capture_output=True
        )
        assert wrong.returncode != 0 and complaint in wrong.stderr, wrong.stderr


def test_the_tool_prints_the_program_of_each_rank():
    tool = pathlib.Path(ruedarun()).with_name("rueda")
    plan = "attention plan --ranks 2 --length 64 --causal --layout zigzag --rotate kv".split()
    without = subprocess.run([tool, *plan, "--backward"], text=True, capture_output=True)
    done = subprocess.run([tool, *plan, "--backward", "--program"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(without.stdout)
    programs = done.stdout[len(without.stdout) :].split("\nrank ")[1:]
    assert [text.split(":")[0] for text in programs] == ["0, backward", "1, backward"]
    for rank, text in enumerate(programs):
        head, *lines = text.strip().split("\n")
        assert f"{len(lines)} instructions" in head
        assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
        other = f"rank {1 - rank}"
        for step in (f"send exchange 0 to {other}  ", f"receive exchange 0 from {other}, answer"):
            assert step in text, text
        assert lines[-1].split()[1] == "free"


@ranks(2)
def test_ranks_that_disagree_are_told_so_and_go_on():
    def call(heads=4, batch=1, dtype=torch.float32, **options):
        tensors = [torch.ones(batch, 20, heads, 8, dtype=dtype) for _ in range(3)]
        return ra.ring_attention(*tensors, **{"length": 40, "layout": "striped", **options})

    differences = {
        "causal": (True, False),
        "softmax_scale": (0.1, 0.2),
        "layout": ("contiguous", "zigzag"),
        "window_size": ((5, 5), (5, 6)),
        "compression": (None, "int8"),
        "heads": (4, 5),
        "batch": (1, 2),
        "dtype": (torch.float32, torch.bfloat16),
    }
    for name, values in differences.items():
        with raises(hvd.HorovodInternalError, "attention forward, step 1 of 1", "same arguments"):
            call(**{name: values[hvd.rank()]})
        assert torch.allclose(call(), torch.ones(1, 20, 4, 8)), name
    # Another scheme: heads are exchanged here, rows there.
    tensors = [torch.ones(1, 20, 4, 8) for _ in range(3)]
    scheme = (ra.ulysses_attention, ra.ring_attention)[hvd.rank()]
    with raises(hvd.HorovodInternalError, f"rank {1 - hvd.rank()}: ", "same arguments"):
        scheme(*tensors, length=40)
    assert torch.allclose(call(), torch.ones(1, 20, 4, 8))


def wrong_arguments_of_one_rank():
    """They end the calls of the others, which would wait for it, and the next call goes on."""
    rank, size = hvd.rank(), hvd.size()
    q, k, v = (torch.ones(1, 20, 4, 8) for _ in range(3))

    def ring(*tensors, function=ra.ring_attention, **options):
        return function(*(tensors or (q, k, v)), **{"length": 20 * size, **options})

    wrong = {
        "softcap is -1": lambda: ring(softcap=-1),
        "k and v must be alike": lambda: ring(q, k, v[:, 1:]),
        "this rank has 19 tokens": lambda: ring(q[:, 1:], k, v),
        "this rank has 18 keys": lambda: ring(q, k[:, 2:], v[:, 2:], function=ra.ulysses_attention),
        "has no option 'dropout_p'": lambda: ring(dropout_p=0.1),
        "does not divide": lambda: ring(function=ra.usp_attention, ulysses_degree=size + 1),
        "there are 1 sinks": lambda: ra.decode_attention(q[:, :1], k, v, [9], sinks=[1.0]),
    }
    for text, call in wrong.items():
        if rank == size - 1:
            with raises((TypeError, ValueError), text):
                call()
        else:
            with raises(hvd.HorovodInternalError, f"the call of rank {size - 1} (pid ", "or was refused there"):
                ring()
        assert torch.allclose(ring(), torch.ones(8)), text
    # Before the ranks are asked how many tokens there are.
    if rank == size - 1:
        with raises(ValueError, "k and v must be alike"):
            ring(q, k, v[:, 1:], length=None)
    else:
        with raises(hvd.HorovodInternalError, f"the call of rank {size - 1} was refused there"):
            ring(length=None)
    for length in (None, 20 * size):  # on all ranks
        with raises(ValueError, "softcap is -1"):
            ring(softcap=-1, length=length)
    assert torch.allclose(ring(length=None), torch.ones(8))
    assert torch.allclose(ring(), torch.ones(8))


@ranks(2, 3)
def test_wrong_arguments_of_one_rank_are_told_to_the_others():
    wrong_arguments_of_one_rank()


@ranks(3, 4)
def test_ranks_that_wait_for_one_that_would_send_nothing_are_told():
    """With contiguous causal tokens the last rank sends nothing, though the others wait for it; one row of decoding is merged by one rank."""
    tensors = [torch.ones(1, 20, 4, 8) for _ in range(3)]
    cache = [torch.ones(1, 9, 1, 8) for _ in range(3)]
    last = hvd.rank() == hvd.size() - 1

    def calls(differs):
        options = {"length": 20 * hvd.size(), "causal": differs, "async_op": True}
        yield "attention forward", ra.ring_attention(*tensors, **options)
        yield "decode attention", ra.decode_attention(cache[0][:, :1], *cache[1:], [9], causal=differs, async_op=True)

    for where, request in calls(last):
        named = "rank " if last else f"rank {hvd.size() - 1} (pid "  # whoever has told it
        with raises(hvd.HorovodInternalError, where, f": the call of {named}", "differs from this rank's", "same arguments"):
            request.wait(60)
    for _, request in calls(False):
        assert torch.allclose(request.wait(), torch.ones(8))


@ranks(2, 3)
def test_a_rank_that_calls_another_attention_is_named():
    """Also where it waits for one that needs nothing of it and has ended its own call."""
    rank, size = hvd.rank(), hvd.size()
    last = rank == size - 1
    tensors = [torch.ones(1, 20, 4, 8) for _ in range(3)]
    cache = [torch.ones(size, 9, 1, 8) for _ in range(2)]

    def decode(queries):
        rows = size if queries == "same" else 1
        return ra.decode_attention(torch.ones(rows, 1, 1, 8), *cache, [9] * size, queries=queries, async_op=True)

    def ring(**options):
        return ra.ring_attention(*tensors, length=20 * size, async_op=True, **options)

    calls = {
        "own queries": (lambda: decode("same"), lambda: decode("own")),
        "a ring": (lambda: decode("same"), ring),
        "a decode": (lambda: ring(window_size=(3, 3)), lambda: decode("same")),
    }
    for name, (theirs, its) in calls.items():
        request = its() if last else theirs()
        if name == "a decode" and rank < size - 2:
            request.wait(60)
        else:
            named = "rank " if last else f"rank {size - 1} (pid "
            with raises(hvd.HorovodInternalError, f": the call of {named}", "differs from this rank's"):
                request.wait(60)
        assert torch.allclose(decode("same").wait(60), torch.ones(8)), name


@ranks(3)
def test_errors_in_a_process_set_name_ranks_of_the_job():
    process_set = hvd.add_process_set([1, 2])
    if process_set.included():
        tensors = [torch.ones(1, 20, 4, 8) for _ in range(3)]
        other = 3 - hvd.rank()
        for scheme in (ra.ring_attention, ra.ulysses_attention):
            with raises(hvd.HorovodInternalError, f"rank {other}: ", "same arguments"):
                scheme(*tensors, length=40, causal=hvd.rank() == 1, process_set=process_set)
    hvd.remove_process_set(process_set)


def aborts_a_call_that_its_peer_never_makes():
    tensors = [torch.ones(1, 20, 4, 8) for _ in range(3)]
    if hvd.rank() == 0:
        for scheme in (ra.ring_attention, ra.ulysses_attention):
            request = scheme(*tensors, length=40, async_op=True)
            assert not request.done()
            with raises(DeadlineExceeded, "goes on"):
                request.wait(0.05)
            request.abort()
            with raises(hvd.HorovodInternalError, "was aborted on this rank"):
                request.wait(60)
            assert request.done()
    return hvd.allgather_object(hvd.rank())


def test_a_call_can_be_aborted():
    outcome = run_ranks(2, aborts_a_call_that_its_peer_never_makes)
    assert results(outcome) == [[0, 1], [0, 1]]


def forks_while_a_call_is_under_way():
    """The child has a copy of the call, and drops it; the parent drops one that has not ended, too."""
    from rueda._runtime import runtime

    tensors = [torch.ones(1, 20, 4, 8) for _ in range(3)]
    if hvd.rank() == 0:
        request = ra.ring_attention(*tensors, length=40, async_op=True)
        assert not request.done()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)  # a child that waits for its parent's call
                del request
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert not request.done()  # what the child has done is nothing to the parent
        del request
        gc.collect()

        def let_go():  # its tensors are held until it has ended
            runtime._let_go()
            return not runtime._abandoned

        eventually(let_go)
    return hvd.allgather_object(hvd.rank())


def test_a_call_may_be_dropped_in_a_forked_child_and_in_its_parent():
    outcome = run_ranks(2, forks_while_a_call_is_under_way)
    assert results(outcome) == [[0, 1], [0, 1]]


@ranks(2)
def test_gradients_may_be_of_a_graph_and_have_none_themselves():
    own = [ra.shard_sequence(x).requires_grad_() for x in inputs()[:3]]
    first = torch.autograd.grad((ra.ring_attention(*own) ** 2).sum(), own, create_graph=True)
    again = torch.autograd.grad((ra.ring_attention(*own) ** 2).sum(), own)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    with raises(RuntimeError, "attention has no second derivatives", "leave out create_graph=True"):
        sum((each**2).sum() for each in first).backward()
