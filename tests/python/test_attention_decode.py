"""`decode_attention` against softmax in float64, over caches that ranks share."""

import numpy as np
import rueda as hvd
import rueda.attention as ra
import rueda.torch
import torch
from expect import raises
from rueda.attention._groups import local
from worlds import ranks

WORLD = "torch"


def expected(
    q, k, v, lengths, causal=True, left=-1, global_tokens=0, sinks=None, scale=None, softcap=0.0, alibi_slopes=None
):  # fmt: skip
    """(out, lse) of whole sequences; k and v are [sequence][token]."""
    batch, tokens, heads, d = q.shape
    group = heads // k[0].shape[1]
    out, lse = np.zeros(q.shape), np.full((batch, heads, tokens), -np.inf)
    for b, i, h in np.ndindex(batch, tokens, heads):
        length = lengths[b]
        keys, values = (x[b][:length, h // group].astype(np.float64) for x in (k, v))
        position, at = length - tokens + i, np.arange(length)
        seen = at <= position if causal else at >= 0
        if left >= 0:
            seen &= (at >= position - left) | (at < global_tokens)
        scores = keys[seen] @ q[b, i, h].astype(np.float64) * (scale or d**-0.5)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores -= np.broadcast_to(alibi_slopes, (batch, heads))[b, h] * np.abs(position - at[seen])
        every = scores if sinks is None or not length else np.append(scores, sinks[h])
        if sinks is not None and not length:
            every = np.array([sinks[h]], np.float64)
        if every.size:
            top = every.max()
            total = np.exp(every - top).sum()
            lse[b, h, i] = top + np.log(total)
            out[b, i, h] = np.exp(scores - lse[b, h, i]) @ values[seen]
    return out, lse


def problem(seed, lengths, tokens, heads, kv_heads, d, dtype=np.float32):
    random = np.random.default_rng(seed)
    q = random.standard_normal((len(lengths), tokens, heads, d)).astype(dtype)
    k, v = ([random.standard_normal((n, kv_heads, d)).astype(dtype) for n in lengths] for _ in range(2))
    return q, k, v


def caches(k, v, rank, size, spare=1):
    """This rank's tokens of each sequence, with places to spare that hold what must not be read."""
    places = max(-(-len(x) // size) for x in k) + spare
    found = []
    for whole in (k, v):
        cache = np.full((len(whole), places, *whole[0].shape[1:]), np.nan, whole[0].dtype)
        for row, tokens in zip(cache, whole):
            mine = tokens[rank::size]
            row[: len(mine)] = mine
        found.append(cache)
    return found


def paged(cache, block, seed):
    """(blocks, block table): the same in blocks at random places."""
    batch, places = cache[0].shape[:2]
    each = -(-places // block)
    order = np.random.default_rng(seed).permutation(batch * each + 3)[: batch * each].reshape(batch, each)
    blocks = []
    for whole in cache:
        padded = np.full((batch, each * block, *whole.shape[2:]), np.nan, whole.dtype)
        padded[:, :places] = whole
        pages = np.full((batch * each + 3, block, *whole.shape[2:]), np.nan, whole.dtype)
        pages[order] = padded.reshape(batch, each, block, *whole.shape[2:])
        blocks.append(pages)
    return blocks, order


CASES = [
    {},
    {"causal": False},
    {"left": 7},
    {"left": 0},
    {"left": 9, "global_tokens": 4},
    {"sinks": [0.5, -2.0, 3.0, 0.0, 1.0, 9.0]},
    {"scale": 0.3, "left": 40, "global_tokens": 2, "sinks": [1.0] * 6},
]


def options_of(case):
    options = dict(case)
    if "left" in options:
        options["window_size"] = (options.pop("left"), -1)
    if "scale" in options:
        options["softmax_scale"] = options.pop("scale")
    return options


def close(result, wanted, dtype=np.float32):
    tolerance = 2e-5 if dtype == np.float32 else 4e-3
    for got, right in zip(result, wanted):
        np.testing.assert_allclose(np.asarray(got, np.float64), right, rtol=tolerance, atol=tolerance)


@ranks(1, 2, 3)
def test_all_ranks_have_the_same_queries():
    rank, size = hvd.rank(), hvd.size()
    lengths = [5, 0, 64, 3, 131]
    for seed, case in enumerate(CASES):
        q, k, v = problem(seed, lengths, 3, 6, 2, 20)
        cache = caches(k, v, rank, size)
        wanted = expected(q, k, v, lengths, **case)
        result = ra.decode_attention(q, *cache, lengths, return_lse=True, **options_of(case))
        close(result, wanted)
        for threads in (1, 3):
            again = ra.decode_attention(q, *cache, lengths, return_lse=True, threads=threads, **options_of(case))
            assert all(np.array_equal(x, y) for x, y in zip(again, result)), "bits do not depend on threads"
        every = hvd.allgather_object([x.tobytes() for x in result])
        assert every == every[:1] * size
        blocks, table = paged(cache, 4, seed)
        in_pages = ra.decode_attention(q, *blocks, lengths, block_table=table, return_lse=True, **options_of(case))
        assert all(np.array_equal(x, y) for x, y in zip(in_pages, result))


@ranks(1, 2, 3)
def test_each_rank_has_sequences_of_its_own():
    rank, size = hvd.rank(), hvd.size()
    lengths = [9, 70, 33, 1, 0, 12, 5]
    bounds = np.cumsum([0, *(len(part) for part in np.array_split(lengths, size))])
    own = slice(bounds[rank], bounds[rank + 1])
    for seed, case in enumerate(CASES):
        q, k, v = problem(seed, lengths, 1, 6, 3, 16)
        wanted = [x[own] for x in expected(q, k, v, lengths, **case)]
        result = ra.decode_attention(
            q[own], *caches(k, v, rank, size), lengths, queries="own", return_lse=True, **options_of(case)
        )
        close(result, wanted)


@ranks(2)
def test_dtypes_frameworks_and_several_at_once():
    rank, size = hvd.rank(), hvd.size()
    lengths = [40, 21]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v = problem(7, lengths, 2, 4, 4, 32)
        narrow = [torch.from_numpy(x).to(dtype) for x in (q, *caches(k, v, rank, size))]
        request = ra.decode_attention(*narrow, lengths, return_lse=True, async_op=True)
        other = ra.decode_attention(q, *caches(k, v, rank, size), torch.tensor(lengths), return_lse=True)
        out, lse = request.wait()
        assert out.dtype == dtype and lse.dtype == torch.float32
        rounded = [torch.from_numpy(q).to(dtype).float().numpy()]
        rounded += [[torch.from_numpy(x).to(dtype).float().numpy() for x in each] for each in (k, v)]
        tolerance = np.float32 if dtype == torch.float32 else np.float16
        if dtype == torch.bfloat16:
            np.testing.assert_allclose(out.float().numpy(), expected(*rounded, lengths)[0], rtol=2e-2, atol=2e-2)
        else:
            close((out.float(), lse), expected(*rounded, lengths), tolerance)
        close(other, expected(q, k, v, lengths))


@ranks(2)
def test_long_caches_are_cut_and_merged():
    rank, size = hvd.rank(), hvd.size()
    lengths = [30_001, 9_000]
    q, k, v = problem(3, lengths, 1, 4, 1, 24)
    for case in ({}, {"left": 5000, "global_tokens": 64}):
        result = ra.decode_attention(q, *caches(k, v, rank, size), lengths, return_lse=True, threads=2, **options_of(case))
        close(result, expected(q, k, v, lengths, **case))


@ranks(1, 2, 3)
def test_a_prompt_of_ring_attention_is_gone_on_with():
    """A whole sequence at once, and its last token by the cache that the prompt has left."""
    length = 37
    q, k, v = problem(5, [length], length, 4, 2, 16)
    k, v = k[0][None], v[0][None]
    mine = [ra.shard_sequence(x, layout="striped") for x in (q, k, v)]
    whole = ra.unshard_sequence(ra.ring_attention(*mine, causal=True, layout="striped", length=length), layout="striped", length=length)
    last = ra.decode_attention(q[:, -1:], *mine[1:], [length])
    np.testing.assert_allclose(last, whole[:, -1:], rtol=2e-5, atol=2e-5)


def prompts_in_chunks(as_tensors=torch.from_numpy):
    """A cache that is filled a chunk at a time: what the queries of each chunk see is what the whole prompt at once shows them."""
    rank, size = hvd.rank(), hvd.size()
    length, heads, kv_heads, d = 61, 6, 2, 20
    q, k, v = problem(11, [length], length, heads, kv_heads, d)
    cases = [{}, {"left": 9, "global_tokens": 4, "sinks": [0.5, -2.0, 3.0, 0.0, 1.0, 9.0], "softcap": 2.0}]
    wanted = [expected(q, k, v, [length], **case) for case in cases]
    whole = [as_tensors(x) for x in caches(k, v, rank, size)]
    blocks, table = paged([x.numpy() for x in whole], 4, 3)
    blocks = [as_tensors(x) for x in blocks]
    for begin in range(0, length, 6 * size):
        end = min(begin + 6 * size, length)
        chunk = as_tensors(q[:, begin:end])
        # Queries, spread as the cache is: what travels is what takes fewer bytes.
        own = ra.shard_sequence(chunk, layout="striped")
        here = [x[:, : len(range(rank, end, size))] for x in whole]
        out = ra.ring_attention(own, *here, causal=True, layout="striped", length=end - begin, key_length=end)
        close([out], [wanted[0][0][:, begin:end][:, rank::size]])
        # All of them on each rank, of a paged cache: windows with global tokens and sinks too.
        for case, (right, lse) in zip(cases, wanted):
            result = ra.decode_attention(chunk, *blocks, [end], block_table=table, return_lse=True, **options_of(case))
            close(result, (right[:, begin:end], lse[:, :, begin:end]))


@ranks(1, 2, 3)
def test_prompts_in_chunks_are_those_at_once():
    prompts_in_chunks()


def test_without_a_job_the_whole_cache_is_here():
    lengths = [12, 30]
    q, k, v = problem(1, lengths, 2, 4, 2, 8)
    result = ra.decode_attention(q, *caches(k, v, 0, 1), lengths, process_set=local, return_lse=True)
    close(result, expected(q, k, v, lengths))


@ranks(2)
def test_wrong_arguments_are_errors_on_all_ranks():
    rank, size = hvd.rank(), hvd.size()
    lengths = [12, 30]
    q, k, v = problem(1, lengths, 2, 4, 2, 8)
    cache = caches(k, v, rank, size)
    wrong = [
        ({"lengths": [12, 1]}, "the length of sequence 1 is 1: it counts the 2 new tokens"),
        ({"lengths": [12]}, "q has 2 sequences, expected 1 as there are lengths"),
        ({"lengths": [12, 300]}, "sequence 1 has 150 tokens on this rank, its cache has room for 16"),
        ({"global_tokens": 3}, "global_tokens says what is seen beyond a window"),
        ({"queries": "own"}, "q has 2 sequences, expected 1: rank"),
        ({"softmax_scale": float("nan")}, "the scale is not finite"),
        ({"block_table": [[0], [7]], "lengths": [12, 12]}, "the block table names block 7 for sequence 1, of 2"),
    ]
    for options, text in wrong:
        with raises(ValueError, text):
            ra.decode_attention(q, *cache, **{"lengths": lengths, **options})
    for options, text in wrong[1:]:  # on one rank alone: the other is told
        with raises(ValueError, text) if rank == 1 else raises(Exception, "do all ranks call the same attention"):
            ra.decode_attention(q, *cache, **{"lengths": lengths, **(options if rank == 1 else {})})
    with raises(Exception, "do all ranks call the same attention"):
        ra.decode_attention(q, *cache, lengths, causal=rank == 0)
    close([ra.decode_attention(q, *cache, lengths)], expected(q, k, v, lengths)[:1])
    for options, text in (
        ({"queries": "all"}, "expected 'same' or 'own'"),
        ({"window_size": (3, 2)}, "right is -1 or 0"),
        ({"sinks": [1.0]}, "there are 1 sinks"),
        ({"block_table": [0]}, "block_table is "),
        ({"block_table": [[0.5], [1.0]]}, "block_table: float64, expected whole numbers"),
        ({"process_set": 3}, "expected a ProcessSet"),
    ):
        with raises(ValueError, text):
            ra.decode_attention(q, *cache, lengths, **options)
    with raises(ValueError, "the caches must be contiguous"):
        ra.decode_attention(q, cache[0].swapaxes(0, 1), cache[1].swapaxes(0, 1), lengths)
    with raises(ValueError, "shapes do not fit"):
        ra.decode_attention(q[0], *cache, lengths)
    with raises(ValueError, "has no gradients"):
        ra.decode_attention(torch.from_numpy(q).requires_grad_(), *map(torch.from_numpy, cache), lengths)


