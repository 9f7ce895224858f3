"""rueda.jax.attention: results and gradients are those of PyTorch tensors, bit by bit, in every place where JAX lets a function stand."""

import functools
import importlib.util

import numpy as np
import pytest
from worlds import ranks

pytest.importorskip("jax")
WORLD = "jax"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch here")

LENGTH, HEADS, KV_HEADS, DIM = 24, 4, 2, 8


def shares(rank, size, layout="contiguous", dtype="float32", batch=2, length=LENGTH):
    """This rank's q, k, v and the gradients of out and lse, as NumPy's arrays."""
    from rueda.attention import position_ids

    random = np.random.default_rng(7)
    whole = [random.normal(size=(batch, length, heads, DIM)).astype(np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    mine = position_ids(length, layout, rank, size)
    dlse = random.normal(size=(batch, HEADS, length)).astype(np.float32)
    return [each[:, mine].copy() for each in whole], dlse[:, :, mine].copy()


def by_torch(call, arrays, dlse, dtype):
    """(out, lse, dq, dk, dv) of the same call with PyTorch's tensors, as float32."""
    import torch

    *qkv, dout = (torch.from_numpy(each).to(getattr(torch, dtype)) for each in arrays)
    for each in qkv:
        each.requires_grad_()
    out, lse = call(*qkv, return_lse=True)
    torch.autograd.backward([out, lse], [dout, torch.from_numpy(dlse)])
    return [each.detach().float().numpy() for each in (out, lse, *(x.grad for x in qkv))]


def check(call, arrays, dlse, dtype="float32", wrap=lambda f: f):
    import jax
    import jax.numpy as jnp

    *qkv, dout = (jnp.asarray(each, dtype) for each in arrays)

    @wrap
    def both(q, k, v):
        (out, lse), back = jax.vjp(lambda *x: call(*x, return_lse=True), q, k, v)
        return out, lse, *back((dout, jnp.asarray(dlse)))

    ours = [np.asarray(each, np.float32) for each in both(*qkv)]
    theirs = by_torch(call, arrays, dlse, dtype)
    for mine, other in zip(ours, theirs):
        np.testing.assert_array_equal(mine, other)


@needs_torch
@ranks(1, 2, 3)
def test_what_it_computes_is_what_torch_gets():
    import jax
    import rueda.jax as hvd

    r, n, ha = hvd.rank(), hvd.size(), hvd.attention
    mask = ha.BlockMask.from_dense(np.tril(np.ones((6, 6), bool)), LENGTH, 4)
    for layout, dtype, call in (
        ("contiguous", "float32", lambda q, k, v, **o: ha.ring_attention(q, k, v, **o)),
        ("zigzag", "bfloat16", lambda q, k, v, **o: ha.ring_attention(q, k, v, causal=True, layout="zigzag", length=LENGTH, **o)),
        ("striped", "float16", lambda q, k, v, **o: ha.all_gather_attention(q, k, v, window_size=(5, 2), layout="striped", length=LENGTH, **o)),
        ("contiguous", "float32", lambda q, k, v, **o: ha.ring_dilated_attention(q, k, v, [8, 24], [1, 2], causal=True, length=LENGTH, **o)),
        ("contiguous", "float32", lambda q, k, v, **o: ha.ring_block_sparse_attention(q, k, v, mask, **o)),
        ("contiguous", "float32", lambda q, k, v, **o: ha.dilated_attention(q, k, v, [8], [2], **o)),
    ):  # fmt: skip
        arrays, dlse = shares(r, n, layout)
        for wrap in (lambda f: f, jax.jit):
            check(call, arrays, dlse, dtype, wrap)
    arrays, dlse = shares(r, n, "striped", batch=1)
    (q, k, v, _), ends = arrays, [0, 5, 17, LENGTH]
    packed = jax.jit(lambda *x: ha.ring_attention_varlen(*x, ends, causal=True))(q[0], k[0], v[0])
    np.testing.assert_array_equal(packed, ha.ring_attention_varlen(q[0], k[0], v[0], ends, causal=True))


@needs_torch
@ranks(2)
def test_packed_sequences_have_gradients_and_parts_are_merged():
    import jax
    import jax.numpy as jnp
    import rueda.attention
    import rueda.jax as hvd

    r, n, ha = hvd.rank(), hvd.size(), hvd.attention
    arrays, dlse = shares(r, n, "striped", batch=1)
    for layout_of, ends in (("whole", [0, 5, 17, LENGTH]), ("sequence", [0, 6, 18, LENGTH])):
        for wrap in (lambda f: f, lambda f: jax.jit(jax.checkpoint(f))):
            check(
                lambda q, k, v, **o: ha.ring_attention_varlen(q, k, v, ends, causal=True, layout_of=layout_of, **o),  # noqa: B023
                [each[0] for each in arrays],
                dlse[0],
                wrap=wrap,
            )
    # Of one process's own: half of the keys and the other half are all of them, and so are their gradients.
    arrays, dlse = shares(0, 1)
    local = ha.BlockMask.from_dense(np.ones((6, 6), bool), LENGTH, 4)
    check(lambda q, k, v, **o: ha.block_sparse_attention(q, k, v, local, **o), arrays, dlse, wrap=jax.jit)
    *qkv, dout = map(jnp.asarray, arrays)

    def attend(q, k, v):
        return ha.dilated_attention(q, k, v, [LENGTH], [1], return_lse=True)

    def parts(q, k, v):
        """(out, lse) of the first keys, and those of the others."""
        every = jnp.repeat(k, HEADS // KV_HEADS, 2), jnp.repeat(v, HEADS // KV_HEADS, 2)
        for k, v in zip(*(jnp.split(each, [LENGTH // 3], 1) for each in every)):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
            yield from (jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v), jax.nn.logsumexp(scores, -1))

    def merged(q, k, v):
        return ha.merge_attention(*parts(q, k, v))

    cotangents = dout, jnp.asarray(dlse)

    @functools.partial(jax.jit, static_argnums=0)
    def results(call, *qkv):
        found, back = jax.vjp(call, *qkv)
        return *found, *back(cotangents)

    found = results(merged, *qkv)
    for ours, other in zip(found, results(attend, *qkv)):
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=2e-5)
    of_parts = map(np.asarray, jax.jit(lambda *x: list(parts(*x)))(*qkv))
    for ours, other in zip(found, rueda.attention.merge_attention(*of_parts)):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="results do not fit"):
        ha.merge_attention(*found[:2], found[0][:, :3], found[1])


@needs_torch
@ranks(4)
def test_sequences_among_some_of_the_ranks():
    """Data and sequence parallelism: each pair of ranks has a batch of its own."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    ha, r = hvd.attention, hvd.rank()
    sequence, data = ha.sequence_parallel_sets(2)
    assert sequence.ranks == [r // 2 * 2, r // 2 * 2 + 1] and data.ranks == [r % 2, r % 2 + 2]
    arrays, dlse = shares(r % 2, 2, "zigzag")
    arrays = [each * (1 + r // 2) for each in arrays]
    for scheme in (ha.ring_attention, ha.ulysses_attention):

        def call(q, k, v, scheme=scheme, **options):
            return scheme(q, k, v, causal=True, layout="zigzag", length=LENGTH, process_set=sequence, **options)

        check(call, arrays, dlse, wrap=jax.jit)

    @jax.jit
    def loss(scale):
        q, k, v, dout = map(jnp.asarray, arrays)
        of_batch = (ha.ring_attention(q * scale, k, v, process_set=sequence) * dout).sum()
        return hvd.allreduce(hvd.allreduce(of_batch, hvd.Sum, process_set=sequence), process_set=data)

    assert len(set(hvd.allgather_object(float(loss(0.5))))) == 1


@needs_torch
@ranks(2, 4)
def test_heads_are_exchanged_for_tokens_as_with_torch():
    import jax
    import rueda.jax as hvd

    r, n, ha = hvd.rank(), hvd.size(), hvd.attention
    for layout, dtype, call in (
        ("contiguous", "float32", lambda q, k, v, **o: ha.ulysses_attention(q, k, v, **o)),
        ("zigzag", "bfloat16", lambda q, k, v, **o: ha.ulysses_attention(q, k, v, causal=True, layout="zigzag", length=LENGTH, **o)),
        ("striped", "float32", lambda q, k, v, **o: ha.usp_attention(q, k, v, ulysses_degree=2, causal=True, layout="striped", length=LENGTH, **o)),
        ("contiguous", "float16", lambda q, k, v, **o: ha.usp_attention(q, k, v, ring_degree=n // 2, window_size=(7, 0), **o)),
    ):  # fmt: skip
        arrays, dlse = shares(r, n, layout)
        for wrap in (lambda f: f, jax.jit, jax.checkpoint):
            check(call, arrays, dlse, dtype, wrap)


@ranks(2)
def test_vmap_is_one_call_of_a_larger_batch():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    arrays, _ = shares(hvd.rank(), hvd.size(), batch=6)
    q, k, v, dout = (jnp.asarray(each).reshape(3, 2, *each.shape[1:]) for each in arrays)
    whole = [each.reshape(6, *each.shape[2:]) for each in (q, k, v, dout)]
    for scheme in (hvd.attention.ring_attention, hvd.attention.ulysses_attention):

        def attend(q, k, v, scheme=scheme):
            return scheme(q, k, v, causal=True, return_lse=True)

        def grads(q, k, v, dout, scheme=scheme):
            return jax.vjp(lambda *x: scheme(*x, causal=True), q, k, v)[1](dout)

        for f, given in ((attend, 3), (grads, 4), (jax.checkpoint(grads), 4)):
            expected = f(*whole[:given])
            for run in (jax.vmap(f), jax.jit(jax.vmap(f))):
                for ours, other in zip(run(q, k, v, dout)[:given] if given == 4 else run(q, k, v), expected):
                    np.testing.assert_array_equal(ours.reshape(other.shape), other)
        # Queries alone are many, and in another place; two vmaps.
        many = jax.vmap(lambda q: attend(q, k[0], v[0])[0], in_axes=2, out_axes=1)(jnp.moveaxis(q, 0, 2))
        for i in range(3):
            np.testing.assert_array_equal(many[:, i], attend(q[i], k[0], v[0])[0])
        one = [each[:, :, None] for each in (q, k, v)]
        twice = jax.vmap(jax.vmap(lambda *x: attend(*x)[0]))(*one)
        np.testing.assert_array_equal(twice[:, :, 0], jax.vmap(lambda *x: attend(*x)[0])(q, k, v))
        # A gradient around it, and rows of a jacobian inside.
        def loss(q, k, v, run=jax.vmap(lambda *x: attend(*x)[0])):
            return (run(q, k, v) * dout).sum()

        for ours, other in zip(jax.grad(loss, (0, 1, 2))(q, k, v), grads(*whole)):
            np.testing.assert_array_equal(ours.reshape(other.shape), other)
        _, back = jax.vjp(lambda q: attend(q, k[0], v[0])[0], q[0])
        rows = jax.vmap(back)(dout)[0]
        np.testing.assert_array_equal(rows[1], back(dout[1])[0])


@ranks(2)
def test_inside_of_loops_checkpoints_and_beside_collectives():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    arrays, _ = shares(hvd.rank(), hvd.size())
    q, k, v, _ = map(jnp.asarray, arrays)

    def layer(x, scale):
        out = hvd.attention.ring_attention(x * scale, k, v, causal=True)
        return x + out, hvd.allreduce(out.sum(), hvd.Sum)

    def layers(wrap):
        def loss(scales):
            x, sums = jax.lax.scan(wrap(layer), q, scales)
            return (x**2).sum() + sums.sum()

        return jax.jit(jax.value_and_grad(loss))(jnp.asarray([0.5, 1.0, 1.5]))

    def unrolled(scales):
        x, total = q, 0.0
        for i in range(3):
            x, one = layer(x, scales[i])
            total += one
        return (x**2).sum() + total

    expected = jax.value_and_grad(unrolled)(jnp.asarray([0.5, 1.0, 1.5]))
    for wrap in (lambda f: f, jax.checkpoint):
        for ours, other in zip(layers(wrap), expected):
            np.testing.assert_allclose(ours, other, rtol=1e-5)


@ranks(2, 3)
def test_what_is_kept_for_backward_is_what_save_says():
    import jax
    import jax.numpy as jnp
    import rueda
    import rueda.jax as hvd

    def sent():
        found = rueda.counters()
        return found["shm_bytes"] + found["tcp_bytes"] + found["mpi_bytes"]

    arrays, _ = shares(hvd.rank(), hvd.size())
    q, k, v, dout = map(jnp.asarray, arrays)
    for call in (hvd.attention.ring_attention, hvd.attention.ulysses_attention):
        begin = sent()
        jax.block_until_ready(call(q, k, v, causal=True))
        forward, expected = sent() - begin, None
        for save in (None, "out+lse", "qkv"):
            for wrap in (lambda f: f, jax.checkpoint):

                @jax.jit
                def both(q, k, v, save=save, call=call, wrap=wrap):
                    out, back = jax.vjp(wrap(lambda q, k, v: call(q * 2, k, v, causal=True, save=save) * 2), q, k, v)
                    return out, *back(dout)

                begin = sent()
                found = jax.block_until_ready(both(q, k, v))
                count = sent() - begin
                if expected is None:
                    expected, plain = found, count
                for ours, other in zip(found, expected):
                    np.testing.assert_array_equal(ours, other)
                assert count == plain + forward * (save == "qkv"), (save, wrap)
        many = jax.vmap(jax.grad(lambda q, call=call: (call(q, k, v, save="qkv") * dout).sum()))(jnp.stack([q, 2 * q]))
        np.testing.assert_array_equal(many[1], jax.grad(lambda q, call=call: (call(q, k, v) * dout).sum())(2 * q))


@ranks(2)
def test_independent_calls_keep_their_order():
    """Two that fit each other's tensors: exchanged, they would give wrong numbers and no error."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    arrays, _ = shares(hvd.rank(), hvd.size())
    q, k, v, _ = map(jnp.asarray, arrays)
    ring = hvd.attention.ring_attention

    @jax.jit
    def program(q, k, v):
        late = k
        for _ in range(50):  # one that could begin much later than the other
            late = jnp.sin(late)
        return ring(q, late, v), ring(q, k, v), ring(q, k, late)

    sines = k
    for _ in range(50):
        sines = jnp.sin(sines)
    expected = ring(q, sines, v), ring(q, k, v), ring(q, k, sines)
    for _ in range(5):
        for ours, other in zip(program(q, k, v), expected):
            np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)


@ranks(2, 3)
def test_sequences_are_spread_and_put_together():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    full = jnp.arange(2 * 12 * 3, dtype=jnp.float32).reshape(2, 12, 3)
    weight = 1.0 + hvd.rank()

    for layout in ("contiguous", "zigzag", "striped"):

        @jax.jit
        def around(full):
            mine = hvd.attention.shard_sequence(full, layout=layout)
            return hvd.attention.unshard_sequence(mine, layout=layout)

        np.testing.assert_array_equal(around(full), full)
        # Each rank's copy of the whole counts with its weight; the tokens of this rank get the sum.
        gradient = jax.jit(jax.grad(lambda x: weight * around(x).sum()))(full)
        mine = hvd.attention.shard_sequence(gradient, layout=layout)
        np.testing.assert_array_equal(mine, np.full(mine.shape, hvd.size() * (hvd.size() + 1) / 2))


@ranks(2)
def test_new_tokens_attend_to_a_cache_that_ranks_share():
    import jax
    import jax.numpy as jnp
    import rueda.attention
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    for dtype in (jnp.float32, jnp.bfloat16):
        random = np.random.default_rng(11)
        q, k, v = (jnp.asarray(random.normal(size=shape), dtype) for shape in ((3, 2, HEADS, DIM), *[(3, n * 5, KV_HEADS, DIM)] * 2))
        lengths = [9, 4, 2 * 5]
        mine = [q, jnp.array(k[:, r::n]), jnp.array(v[:, r::n])]
        out, lse = hvd.attention.decode_attention(*mine, jnp.array(lengths), return_lse=True, sinks=jnp.zeros(HEADS))
        assert isinstance(out, jax.Array) and out.dtype == dtype and lse.dtype == jnp.float32
        by_numpy = rueda.attention.decode_attention(*map(np.asarray, mine), lengths, return_lse=True, sinks=[0.0] * HEADS)
        for ours, other in zip((out, lse), by_numpy):
            np.testing.assert_array_equal(np.asarray(ours), other)
        later = hvd.attention.decode_attention(*mine, lengths, async_op=True)
        assert later.done() and later.wait().shape == q.shape
    table = np.arange(3)[:, None]  # each sequence's tokens in a block of its own
    paged = hvd.attention.decode_attention(*mine, lengths, block_table=jnp.asarray(table), sinks=[0.0] * HEADS)
    np.testing.assert_array_equal(np.asarray(paged), np.asarray(out))
    for run in (jax.jit, jax.vmap, lambda f: jax.grad(lambda q: f(q).sum())):
        with pytest.raises(ValueError, match="call it outside of jit, grad and vmap"):
            run(lambda q: hvd.attention.decode_attention(q, *mine[1:], lengths))(q)
    with pytest.raises(ValueError, match="different dtypes"):
        hvd.attention.decode_attention(q.astype(jnp.float32), *mine[1:], lengths)
    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION"):
        hvd.attention.decode_attention(*mine, [9, 4, 8 + r])


@ranks(2)
def test_what_cannot_be_is_said():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    arrays, _ = shares(hvd.rank(), hvd.size())
    q, k, v, _ = map(jnp.asarray, arrays)
    ring = hvd.attention.ring_attention
    refusal = r"none by jax\.jvp, and no second ones \(jax\.hessian\); ulysses_attention\(\.\.\., local_attention=f\)"
    with pytest.raises(NotImplementedError, match=refusal):
        jax.jvp(lambda q: ring(q, k, v), (q,), (q,))

    def twice(call):
        return jax.grad(lambda q: jax.grad(lambda q: (call(q, k, v) ** 2).sum())(q).sum())

    with pytest.raises(NotImplementedError, match=refusal) as refused:
        jax.jit(twice(ring)).trace(q)  # on this rank alone: nothing has been lowered
    assert hvd.allgather_object(str(refused.value)) == [str(refused.value)] * hvd.size()
    # Whichever way they are asked for, also where a second pass of forward mode comes first or last.
    ulysses, usp = hvd.attention.ulysses_attention, hvd.attention.usp_attention
    for call in (ring, ulysses, jax.checkpoint(ring), functools.partial(usp, ulysses_degree=hvd.size())):

        def loss(q, call=call):
            return (call(q, k, v) ** 2).sum()

        for asked in (jax.hessian(loss), jax.jacrev(jax.grad(loss)), lambda q, loss=loss: jax.jvp(jax.grad(loss), (q,), (q,)),
                      lambda q, loss=loss: jax.linearize(jax.grad(loss), q)):
            for run in (lambda f: f, lambda f: jax.jit(f).trace):
                with pytest.raises(NotImplementedError, match=refusal):
                    run(asked)(q)
        with pytest.raises(NotImplementedError, match=refusal):
            jax.jit(jax.jacfwd(loss)).lower(q)
    with pytest.raises(ValueError, match="of one"):
        ring(q, np.asarray(k), v)
    with pytest.raises(ValueError, match="this rank has 12 tokens"):
        ring(q, k, v, length=100)
    other = LENGTH if hvd.rank() == 0 else LENGTH + 1  # ranks that disagree are told so, and the job goes on
    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION"):
        jax.block_until_ready(ring(q, k, v, softmax_scale=1.0 / other))
    np.testing.assert_array_equal(ring(q, k, v), ring(*arrays[:3]))


@ranks(2, 3)
def test_a_function_of_ones_own_attends_between_the_exchanges():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    size, rank = hvd.size(), hvd.rank()
    heads, length = 2 * size, 12 * size
    random = np.random.default_rng(3)
    whole = [jnp.asarray(random.normal(size=(2, length, n, DIM)), jnp.float32) for n in (heads, size, size)]

    def local(q, k, v):
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    def distributed(layout):
        return lambda *qkv: hvd.attention.ulysses_attention(*qkv, layout=layout, local_attention=local)

    def share(x, layout):
        return x[:, np.asarray(hvd.attention.position_ids(length, layout, rank, size))]

    def first(call):  # of the loss
        return jax.grad(lambda *qkv: (call(*qkv) ** 2).sum(), (0, 1, 2))

    def second(call):
        return jax.grad(lambda *qkv: sum((each**2).sum() for each in first(call)(*qkv)), (0, 1, 2))

    for layout in ("contiguous", "zigzag", "striped"):
        own = [share(x, layout) for x in whole]
        call = distributed(layout)
        np.testing.assert_allclose(jax.jit(call)(*own), share(local(*whole), layout), atol=2e-6)
        for of in (first, second):
            for mine, full in zip(jax.jit(of(call))(*own), of(local)(*whole)):
                np.testing.assert_allclose(mine, share(full, layout), rtol=1e-4, atol=1e-3 if of is second else 1e-5)
    few = [x[:, :12, : size + 1] for x in whole[:1]] + [x[:, :12, :1] for x in whole[1:]]
    with pytest.raises(ValueError, match=f"there are {size + 1}: take a number of heads that {size} divides"):
        distributed("contiguous")(*few)
    with pytest.raises(ValueError, match="fill the sequence up"):
        hvd.attention.ulysses_attention(*own, local_attention=local, length=length + 1)
    with pytest.raises(ValueError, match="local_attention gave ArrayImpl|local_attention gave \\(2"):
        hvd.attention.ulysses_attention(*own, local_attention=lambda q, k, v: q[:, :3])
    one = [x[:, :12, :size] for x in (whole[0], *(y[:, :, :1] for y in whole[1:]))]  # fewer key heads than ranks
    assert distributed("contiguous")(*one).shape == one[0].shape
