"""Attention of GPU tensors, all of it but the GPU: plans run by PyTorch's operations on virtual ranks and on real ones, on CPU
tensors, against dense attention in float64."""

import contextlib
import pathlib

import pytest
import rueda.attention as ra
import torch
from attention_oracle import LENGTH, blocks_of, causal, check, dense, dilated, error, inputs
from rueda.attention import device
from rueda.attention.device import _kernels, _own, _partial, _program, _ring
from worlds import ranks

WORLD = "torch"
EVERYTHING = torch.ones(1, LENGTH, LENGTH)
SLOPES = (0.5, 0.25, 0.0625, -0.125)
OF_EACH = ((0.5, 0.25, 0.0625, 0.0), (0.1, 0.2, 0.3, 0.4))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def window(left, right, n=LENGTH, keys=None):
    """Aligned at the end where keys are not as many as queries."""
    keys = n if keys is None else keys
    q, k = torch.arange(n)[:, None] + keys - n, torch.arange(keys)
    return ((q - k <= left) & (k - q <= right)).float()[None]


def packed(ends, n=LENGTH):
    which = torch.bucketize(torch.arange(n), torch.tensor(ends[1:-1]), right=True)
    return (which[:, None] == which).float()[None]


KERNELS = ("torch", "cpu", "cuda")
HOST_ATTENTION = pathlib.Path(__file__).parents[2] / "build/release/tests/attention/host_attention.so"


@contextlib.contextmanager
def using(name):
    """Operations of PyTorch; a library's kernel behind the adapters of those of GPUs; the source of our own, compiled for the host."""
    if name == "cuda":
        _own._library_file, _own.Own.device = HOST_ATTENTION, "cpu"
    else:
        device.use_kernel(name, device="cpu")
    yield
    device.use_kernel("auto", device="cpu")
    _own._library_file, _own.Own.device = None, "cuda"


@pytest.fixture(params=KERNELS)
def kernel(request):
    with using(request.param):
        yield request.param


def exact(
    size, times, layout="contiguous", lse_gradient=True, bound=1e-6, kv=None, shape=None, softcap=0.0, alibi_slopes=None,
    **options,
):  # fmt: skip
    """A virtual ring's outputs, log-sum-exps and gradients are those of the whole."""
    q, k, v, dout = inputs(**(shape or {}))
    k, v = (k, v) if kv is None else (k[:, :kv].clone(), v[:, :kv].clone())
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted, lse = dense(*whole, times, softcap, alibi_slopes)
    dlse = torch.where(torch.isinf(lse), 0.0, torch.randn(lse.shape, dtype=torch.float64)) * lse_gradient
    seen = torch.where(torch.isinf(lse), 0.0, lse)
    ((wanted * dout).sum() + (seen * dlse).sum()).backward()

    ring = ra.VirtualRing(size)
    full = [x.clone().requires_grad_() for x in (q, k, v)]
    spread = {"layout": layout}
    if options.get("per_sequence"):
        spread["cu_seqlens"] = options["cu_seqlens"]
    shards = [ring.shard(x, **spread) for x in full]
    outs, lses = ring.attention(
        *shards, layout=layout, return_lse=True, softcap=softcap, alibi_slopes=alibi_slopes, **options
    )
    out = ring.unshard(outs, **spread)
    own_lse = ring.unshard(lses, axis=2, **spread)
    assert error(out.detach(), wanted.detach()) <= bound
    assert torch.equal(torch.isinf(own_lse), torch.isinf(lse))
    finite = ~torch.isinf(lse)
    assert torch.allclose(own_lse[finite].double(), lse[finite], rtol=2 * bound, atol=2 * bound)
    loss = (out * dout).sum()
    if lse_gradient:
        loss = loss + (own_lse[finite] * dlse[finite].float()).sum()
    loss.backward()
    for mine, theirs in zip(full, whole):
        assert error(mine.grad, theirs.grad) <= 2 * bound, (size, layout, options)
    return ring


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
def test_virtual_rings_compute_what_one_device_would(size, layout):
    kernels = KERNELS[size % 3 :] + KERNELS[: size % 3]
    with using(kernels[0]):
        exact(size, EVERYTHING, layout, lse_gradient=False)
    with using(kernels[1]):
        exact(size, causal(), layout, lse_gradient=False, causal=True)
    with using(kernels[2]):
        exact(size, causal(), layout, causal=True)


@pytest.mark.parametrize("size, layouts", [(1, ["contiguous"]), (3, ["contiguous", "zigzag", "striped"]), (4, ["zigzag"])])
def test_every_mask(size, layouts, kernel):
    for layout in layouts:
        exact(size, window(9, 4), layout, window_size=(9, 4))
        exact(size, window(9, 0) * causal(), layout, window_size=(9, -1), causal=True)
        ends = (0, 11, 12, 40, LENGTH)
        exact(size, packed(ends) * causal(), layout, cu_seqlens=ends, causal=True)
        exact(size, packed(ends), layout, cu_seqlens=ends, per_sequence=layout == "zigzag")
        pairs = {"segment_lengths": (16, LENGTH), "dilation_rates": (1, 3)}
        exact(size, dilated([*zip(*pairs.values())]), layout, **pairs)
        exact(size, dilated([*zip(*pairs.values())]) * causal(), layout, causal=True, **pairs)
        mask = ra.BlockMask.random(LENGTH, 8, density=0.4, seed=5)
        exact(size, blocks_of(mask), layout, block_mask=mask)
        keys = window(1 << 30, 0, keys=31)
        exact(size, keys, layout, causal=True, kv=31, lse_gradient=False)  # some queries see no key


@pytest.mark.parametrize("size", [2, 6])
def test_other_schemes(size, kernel):
    exact(size, causal(), "zigzag", causal=True, gather_first=True)
    exact(size, causal(), "zigzag", causal=True, chunk_tokens=5)
    exact(size, causal(), "zigzag", causal=True, ulysses_degree=2)
    exact(size, window(20, 3), "striped", window_size=(20, 3), ulysses_degree=size)
    exact(size, causal(), causal=True, shape={"heads": 4, "kv_heads": 4, "dim": 33})
    exact(size, causal(), causal=True, shape={"heads": 4, "kv_heads": 1, "dim": 1}, ulysses_degree=2)


@pytest.mark.parametrize("name, size, layout", [
    ("torch", 1, "contiguous"), ("torch", 3, "zigzag"), ("cuda", 2, "zigzag"), ("cuda", 4, "striped")
])  # fmt: skip
def test_softcap_and_alibi(name, size, layout):
    with using(name):
        softcap_and_alibi(size, layout)


def softcap_and_alibi(size, layout):
    exact(size, EVERYTHING, layout, softcap=1.5)
    exact(size, EVERYTHING, layout, alibi_slopes=SLOPES, lse_gradient=False)
    both = {"softcap": 2.0, "alibi_slopes": OF_EACH}
    exact(size, causal(), layout, causal=True, **both)
    exact(size, causal(), layout, causal=True, ulysses_degree=size, **both)
    exact(size, causal(), layout, causal=True, rotate_forward="q", rotate_backward="q", **both)
    exact(size, window(9, 4), layout, window_size=(9, 4), **both)
    ends = (0, 11, 12, 40, LENGTH)
    exact(size, packed(ends) * causal(), layout, cu_seqlens=ends, causal=True, per_sequence=layout == "zigzag", **both)
    pairs = {"segment_lengths": (16, LENGTH), "dilation_rates": (1, 3)}
    exact(size, dilated([*zip(*pairs.values())]), layout, **pairs, **both)
    mask = ra.BlockMask.random(LENGTH, 8, density=0.4, seed=5)
    exact(size, blocks_of(mask), layout, block_mask=mask, **both)
    exact(size, window(1 << 30, 0, keys=31), layout, causal=True, kv=31, lse_gradient=False, **both)


def test_long_windows_are_cut_into_rectangles_and_edges(kernel):
    n = 1500
    shape = {"length": n, "batch": 1, "heads": 1, "kv_heads": 1, "dim": 8}
    exact(2, window(700, 20, n), "zigzag", window_size=(700, 20), shape=shape)
    plan = ra.AttentionPlan(
        rank=0, ranks=1, length=4096, heads=1, head_dim=8, window=(1000, 0), rotate_forward="kv", rotate_backward="kv"
    )
    pieces = [piece for step in _program.program_of(plan, False).steps for piece in step.pieces]
    rectangles = sum(p.q.count * p.k.count for p in pieces if p.kind == _program.FULL)
    assert rectangles > 0.3 * 4096 * 1000


def test_pieces_are_few_and_cover_the_mask():
    spec = dict(length=4096, heads=2, head_dim=8, causal=True, layout="zigzag", chunk_tokens=1 << 40)
    spec.update(rotate_forward="kv", rotate_backward="kv", ranks=8)
    for rank in range(8):
        plan = ra.AttentionPlan(rank=rank, **spec)
        attends = [step for step in _program.program_of(plan, False).steps if step.op == _program.ATTEND]
        own, came = ([step.pieces for step in attends if step.came == which] for which in (False, True))
        assert [[p.kind for p in pieces] for pieces in own] == [["causal"]]  # both chunks in one square
        assert own[0][0].q.count == 512 and len(came) == 7
        for pieces in came:
            assert [p.kind for p in pieces] == ["full"], (rank, pieces)
            assert pieces[0].q.count * pieces[0].k.count == 512 * 256


def test_sixteen_bit_errors_do_not_grow_with_the_ranks():
    q, k, v, dout = inputs(length=256, dim=64, batch=1, dtype=torch.bfloat16)
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted, _ = dense(*whole, causal(256))
    wanted.backward(dout.double())
    device.use_kernel("cpu", device="cpu")
    found = {}
    for size in (1, 8):
        ring = ra.VirtualRing(size)
        full = [x.clone().requires_grad_() for x in (q, k, v)]
        outs = ring.attention(*(ring.shard(x, layout="zigzag") for x in full), layout="zigzag", causal=True)
        out = ring.unshard(outs, layout="zigzag")
        out.backward(dout)
        found[size] = [error(out.detach(), wanted.detach())] + [error(a.grad, b.grad) for a, b in zip(full, whole)]
    device.use_kernel("auto", device="cpu")
    assert all(many <= 2 * one for one, many in zip(found[1], found[8])), found


def test_bytes_are_those_of_the_plan_and_a_quarter_less_for_zigzag():
    ring = exact(4, causal(), "zigzag", causal=True, lse_gradient=False)
    backward = ring.bytes_sent
    spec = dict(batch=2, length=LENGTH, heads=4, kv_heads=2, head_dim=16, causal=True, layout="zigzag", ranks=4)
    spec.update(rotate_forward="kv", rotate_backward="kv", chunk_tokens=1 << 40)
    plans = [ra.AttentionPlan(rank=rank, **spec) for rank in range(4)]
    assert backward == [plan.bytes_sent_backward for plan in plans]


def test_huge_scores_keep_their_gradients(kernel):
    if kernel == "cpu":
        pytest.skip("a library's log-sum-exp is one float32")
    q, k, v, dout = inputs(length=40, batch=1)
    q = q.round() * 256  # scores of some thousands, which float32 holds exactly
    k = k.round()
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted, _ = dense(*whole, torch.ones(1, 40, 40))
    wanted.backward(dout.double())
    ring = ra.VirtualRing(4)
    full = [x.clone().requires_grad_() for x in (q, k, v)]
    out = ring.unshard(ring.attention(*(ring.shard(x) for x in full)))
    out.backward(dout)
    assert error(out.detach(), wanted.detach()) <= 1e-6
    assert error(full[2].grad, whole[2].grad) <= 2e-6


@ranks(2, 3)
def test_ranks_of_a_job_pass_rows_by_collectives():
    _ring._on_cpu = True
    try:
        for layout in ("contiguous", "zigzag", "striped"):
            check(lambda *x, **o: ra.ring_attention(*x, causal=True, **o), causal(), layout)
        check(lambda *x, **o: ra.all_gather_attention(*x, **o), EVERYTHING, "striped")
        check(lambda *x, **o: ra.ring_attention(*x, window_size=(9, 4), **o), window(9, 4), "zigzag")
        check(lambda *x, **o: ra.ulysses_attention(*x, causal=True, **o), causal(), "zigzag")
        pairs = [(16, 1), (LENGTH, 3)]
        check(lambda *x, **o: ra.ring_dilated_attention(*x, *zip(*pairs), **o), dilated(pairs))
        q, k, v, _ = (ra.shard_sequence(x) for x in inputs())
        request = ra.ring_attention(q, k, v, async_op=True)
        assert request.done() and torch.equal(request.wait(), ra.ring_attention(q, k, v))
    finally:
        _ring._on_cpu = False


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim, begin", [(8, 0), (7, 0), (128, 0), (66, 0), (8, 1)])  # in fours, with a rest, out of step
def test_a_librarys_results_are_added_row_by_row(dtype, dim, begin):
    torch.manual_seed(2)
    part = torch.randn(2, 5, 3, dim + begin).to(dtype)[..., begin:]
    sums = (torch.randn(2, 5, 3, dim), torch.randn(2, 3, 5), torch.rand(2, 3, 5))
    sums[0][0, 0, 0], sums[1][0, 0, 0], sums[2][0, 0, 0] = 0.0, -torch.inf, 0.0  # nothing so far
    lse = torch.randn(2, 3, 5)
    wanted = [x.clone() for x in sums]
    _partial.add(wanted, (part.float(), lse, None))
    total = sums[0] + part.float()
    with using("cuda"):
        added = sums[0].clone()
        assert _own.add(added, part) and _own.merge(sums, part, lse)
    assert torch.equal(added, total)
    for mine, right in zip(sums, wanted):
        assert torch.allclose(mine, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim, begin", [(8, 0), (7, 0), (128, 0), (8, 1)])
def test_the_first_part_is_written_where_nothing_is_yet(dtype, dim, begin):
    torch.manual_seed(3)
    part = torch.randn(2, 5, 3, dim + begin).to(dtype)[..., begin:]
    lse = torch.randn(2, 3, 5)
    lse[0, 0, 0] = -torch.inf
    part[0, 0, 0] = 0
    sums = torch.full((2, 5, 3, dim), torch.nan), torch.full((2, 3, 5), -torch.inf), torch.zeros(2, 3, 5)
    added = sums[0].clone()
    with using("cuda"):
        assert _own.add(added, part, fresh=True) and _own.merge(sums, part, lse, fresh=True)
    assert torch.equal(added, part.float()) and torch.equal(sums[0], part.float())
    assert torch.equal(sums[1], lse) and torch.equal(sums[2], (lse > -torch.inf).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim, begin", [(8, 0), (7, 0), (128, 0), (8, 1)])
def test_partial_sums_are_finished_in_one_pass(dtype, dim, begin):
    torch.manual_seed(4)
    acc, m, sums = torch.randn(2, 5, 3, dim), torch.randn(2, 3, 5), torch.rand(2, 3, 5) + 0.5
    acc[0, 0, 0], m[0, 0, 0], sums[0, 0, 0] = 0.0, -torch.inf, 0.0  # saw no key
    right, right_lse = torch.empty(2, 5, 3, dim, dtype=dtype), m.clone()
    _partial.finish(acc.clone(), right_lse, sums, right, None)
    out, lse = torch.empty(2, 5, 3, dim + begin, dtype=dtype)[..., begin:], m.clone()
    with using("cuda"):
        assert _own.finish(acc, lse, sums, out)
    assert torch.equal(out, right)
    assert torch.allclose(lse, right_lse, rtol=1e-6, atol=1e-6)
    if dtype == torch.float32:  # in place
        lse = m.clone()
        with using("cuda"):
            assert _own.finish(acc, lse, sums, acc)
        assert torch.equal(acc, right)


def test_the_kernel_that_was_asked_for_computes(kernel):
    q = torch.zeros(1, 1, 1, 16)
    chosen = _kernels.Chosen(q)
    assert chosen.main.name == kernel
    assert chosen.other.name == ("cuda" if kernel == "cuda" else "torch")  # bands
    assert _kernels.Chosen(q, wants_delta=True).main.takes_delta


def test_wrong_calls_are_told_what_to_do():
    ring = ra.VirtualRing(2)
    q, k, v, _ = inputs()
    shards = [ring.shard(x) for x in (q, k, v)]
    with pytest.raises(ValueError, match="2 ranks"):
        ring.attention([q], [k], [v])
    with pytest.raises(ValueError, match="use shard with the same layout"):
        ring.attention([shards[0][1], shards[0][0]], *shards[1:])
    with pytest.raises(ValueError, match="no kernel 'fast' for cuda"):
        ra.use_kernel("fast", device="cuda")
    with pytest.raises(ValueError, match="a ring has one"):
        ra.VirtualRing(0)
