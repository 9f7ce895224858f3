"""More or fewer keys than queries: cross-attention, decoding with a prefix, packed sequences."""

import rueda as hvd
import rueda.attention as ra
import torch
from attention_oracle import dense, error
from expect import raises
from worlds import ranks

WORLD = "torch"


def _inputs(queries, keys, heads=4, kv_heads=2, dim=16):
    torch.manual_seed(2)
    shapes = [(2, queries, heads, dim), (2, keys, kv_heads, dim), (2, keys, kv_heads, dim)]
    return [torch.randn(shape) for shape in (*shapes, shapes[0])]


def _ends_together(queries, keys, left=None):
    """Who sees what when the last query stands at the last key."""
    apart = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    seen = apart <= 0
    return (seen if left is None else seen & (apart >= -left)).float()[None]


def _check(function, times, queries, keys, layout="contiguous", **options):
    *qkv, dout = _inputs(queries, keys)
    whole = [x.double().requires_grad_() for x in qkv]
    wanted, _ = dense(*whole, times)
    wanted.backward(dout.double())
    own = [ra.shard_sequence(x, layout=layout).requires_grad_() for x in qkv]
    out = function(*own, layout=layout, **options)
    out.backward(ra.shard_sequence(dout, layout=layout))
    pairs = [(out.detach(), wanted.detach(), queries)]
    pairs += [(x.grad, y.grad, n) for x, y, n in zip(own, whole, (queries, keys, keys))]
    for got, full, length in pairs:
        together = ra.unshard_sequence(got, layout=layout, length=length)
        if float(full.norm()) == 0:
            assert float(together.norm()) == 0
        else:
            assert error(together, full) <= 2e-6, (queries, keys, layout, options)


@ranks(4)
def test_any_numbers_of_queries_and_keys_are_exact():
    shapes = (("contiguous", 1, 37), ("zigzag", 40, 9), ("striped", 33, 34))
    for layout, queries, keys in shapes:
        everything = torch.ones(1, queries, keys)
        _check(ra.ring_attention, everything, queries, keys, layout)
        for rotate in ("kv", "q"):
            _check(
                ra.ring_attention, _ends_together(queries, keys), queries, keys, layout, causal=True,
                rotate=rotate, length=queries, key_length=keys,
            )  # fmt: skip
        window = _ends_together(queries, keys, left=7)
        _check(ra.ring_attention, window, queries, keys, causal=True, window_size=(7, -1))
        _check(ra.all_gather_attention, everything, queries, keys)
        _check(ra.ulysses_attention, _ends_together(queries, keys), queries, keys, "zigzag", causal=True)
        if hvd.size() == 4:
            _check(ra.usp_attention, everything, queries, keys, ulysses_degree=2)


@ranks(4)
def test_packed_queries_have_their_own_keys():
    ends, ends_k = [0, 3, 3, 20], [0, 10, 15, 30]
    *qkv, dout = (x[:1] for x in _inputs(20, 30))
    times = torch.zeros(1, 20, 30)
    for a, b, c, d in zip(ends, ends[1:], ends_k, ends_k[1:]):
        times[:, a:b, c:d] = _ends_together(b - a, d - c)
    whole = [x.double().requires_grad_() for x in qkv]
    wanted, _ = dense(*whole, times)
    wanted.backward(dout.double())
    own = [ra.shard_sequence(x, layout="striped")[0].requires_grad_() for x in qkv]
    out = ra.ring_attention_varlen(*own, ends, ends_k, causal=True)
    out.backward(ra.shard_sequence(dout, layout="striped")[0])
    for got, full, n in zip((out.detach(), *(x.grad for x in own)),
                            (wanted.detach(), *(x.grad for x in whole)), (20, 20, 30, 30)):  # fmt: skip
        assert error(ra.unshard_sequence(got[None], layout="striped", length=n), full) <= 2e-6


@ranks(4)
def test_a_module_attends_to_another_sequence():
    torch.manual_seed(1)
    layer = ra.RingAttention(32, 4)
    x, memory = torch.randn(1, 11, 32), torch.randn(1, 26, 32)
    own, theirs = ra.shard_sequence(x), ra.shard_sequence(memory)
    out = ra.unshard_sequence(layer(own, theirs), length=11)
    q, k, v = (f(y).unflatten(-1, (4, 8)) for f, y in
               ((layer.q_proj, x), (layer.k_proj, memory), (layer.v_proj, memory)))  # fmt: skip
    wanted, _ = dense(q, k, v, torch.ones(1, 11, 26))
    wanted = layer.out_proj(wanted.float().flatten(-2))
    assert error(out.detach(), wanted.detach()) <= 2e-6


@ranks(4)
def test_what_needs_as_many_keys_as_queries_says_so():
    q, k, v, _ = (ra.shard_sequence(x) for x in _inputs(8, 20))
    with raises(ValueError, "need as many keys as queries"):
        ra.ring_dilated_attention(q, k, v, [8], [2])
    mask = ra.BlockMask.local_window(8, 4, 4)
    with raises(ValueError, "give key_length"):
        ra.ring_block_sparse_attention(q, k, v, mask)
    with raises(ValueError, "give key_length"):
        ra.ring_attention(q, k, v, length=8)
    with raises(ValueError, "gives it 6"):
        ra.ring_attention(q, k, v, length=8, key_length=24)
