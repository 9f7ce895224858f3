"""Sinks: scores without a value that take part in the softmax, against attention written out in float64."""

import numpy as np
import pytest
import rueda as hvd
import rueda.attention as ra
import rueda.torch
import torch
from attention_oracle import LENGTH, causal, error, inputs
from expect import raises
from fake_gpu import ENV, FakeGpuOfAttention, needs_stubs
from rueda.attention._groups import local
from worlds import ranks, run_ranks

WORLD = "torch"
SINKS = (0.5, -2.0, 3.0, 9.0)


def dense(q, k, v, times, sinks):
    """Output and log-sum-exp, by a column more of the scores."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5 + torch.log(times.double())
    column = sinks[:, None, None].expand(*scores.shape[:3], 1)
    every = torch.cat([scores, column], -1)
    return torch.einsum("bhqk,bkhd->bqhd", every.softmax(-1)[..., :-1], v), torch.logsumexp(every, -1)


def sinks_are_exact():
    rank, size = hvd.rank(), hvd.size()
    torch.set_num_threads(1)
    window = torch.triu(causal(), -9)
    calls = [
        (ra.ring_attention, "zigzag", causal(), {"causal": True}),
        (ra.ring_attention, "striped", window, {"causal": True, "window_size": (9, -1), "rotate": "q"}),
        (ra.ulysses_attention, "contiguous", causal(), {"causal": True, "save": "qkv"}),
    ]
    for function, layout, times, options in calls:
        *qkv, dout = inputs()
        whole = [x.double().requires_grad_() for x in (*qkv, torch.tensor(SINKS))]
        wanted, lse = dense(*whole[:3], times, whole[3])
        wanted.backward(dout.double())
        at = torch.from_numpy(ra.position_ids(LENGTH, layout, rank, size))
        own = [x[:, at].clone().requires_grad_() for x in qkv]
        sinks = torch.tensor(SINKS).requires_grad_()
        out, own_lse = function(*own, layout=layout, length=LENGTH, sinks=sinks, return_lse=True, **options)
        out.backward(dout[:, at])
        assert error(out.detach(), wanted.detach()[:, at]) <= 1e-6, layout
        assert torch.allclose(own_lse.detach().double(), lse.detach()[:, :, at], rtol=2e-6, atol=2e-6)
        for mine, theirs in zip(own, whole):
            assert error(mine.grad, theirs.grad[:, at]) <= 3e-6, layout
        yield sinks.grad, whole[3].grad


def sinks_of_a_job():
    for grad, whole in list(sinks_are_exact()):  # of this rank's tokens
        total = rueda.torch.allreduce(grad, op=hvd.Sum) if hvd.size() > 1 else grad
        assert error(total, whole) <= 3e-6


@ranks(1, 3)
def test_sinks_are_exact_with_gradients():
    sinks_of_a_job()


def sinks_on_gpus():
    with FakeGpuOfAttention(hvd.rank()):
        grads = list(sinks_are_exact())
    for grad, whole in grads:
        assert error(rueda.torch.allreduce(grad, op=hvd.Sum), whole) <= 3e-6


@needs_stubs
def test_sinks_on_gpus():
    outcome = run_ranks(2, sinks_on_gpus, env=ENV)
    assert outcome.code == 0, outcome.output


def _whole(q, k, v, **options):
    return ra.ring_attention(q, k, v, process_set=local, length=LENGTH, **options)


def test_every_framework_and_order_of_dimensions():
    q, k, v, _ = inputs()
    wanted, _ = dense(q.double(), k.double(), v.double(), causal(), torch.tensor(SINKS).double())
    options = {"causal": True, "sinks": SINKS}
    assert error(_whole(q, k, v, **options), wanted) <= 1e-6
    arrays = [x.numpy() for x in (q, k, v)]
    assert error(torch.from_numpy(_whole(*arrays, causal=True, sinks=np.array(SINKS))), wanted) <= 1e-6
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    assert error(_whole(*heads_first, qkv_format="bhsd", **options).transpose(1, 2), wanted) <= 1e-6
    packed = ra.ring_attention_varlen(q[0], k[0], v[0], [0, LENGTH], process_set=local, **options)
    assert error(packed, wanted[0]) <= 1e-6
    narrow = _whole(*(x.bfloat16() for x in (q, k, v)), **options)
    assert narrow.dtype == torch.bfloat16 and error(narrow, wanted) <= 1e-2
    graph = torch.compile(lambda q, k, v, s: _whole(q, k, v, causal=True, sinks=s), fullgraph=True, backend="eager")
    assert torch.equal(graph(q, k, v, torch.tensor(SINKS)), _whole(q, k, v, **options))
    # What decoding makes of the last token.
    last = ra.decode_attention(q[:, -1:], k, v, [LENGTH] * 2, sinks=SINKS, process_set=local)
    assert error(last, wanted[:, -1:]) <= 1e-6


def test_queries_without_keys_have_their_sinks_alone():
    q, k, v, _ = inputs()
    own = [x.clone().requires_grad_() for x in (q, k[:, :30], v[:, :30])]
    sinks = torch.tensor(SINKS).requires_grad_()
    out, lse = _whole(*own, causal=True, key_length=30, sinks=sinks, return_lse=True)
    alone = LENGTH - 30
    assert not out[:, :alone].any() and torch.equal(lse[:, :, :alone], sinks[:, None].expand(2, 4, alone))
    out.sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (*own, sinks))


def test_arrays_of_jax_have_gradients_too():
    jax = pytest.importorskip("jax")
    *qkv, dout = inputs()
    whole = [x.double().requires_grad_() for x in (*qkv, torch.tensor(SINKS))]
    dense(*whole[:3], causal(), whole[3])[0].backward(dout.double())

    def product(q, k, v, sinks):
        return (_whole(q, k, v, causal=True, sinks=sinks) * dout.numpy()).sum()

    arrays = [jax.numpy.asarray(x.numpy()) for x in (*qkv, torch.tensor(SINKS))]
    grads = jax.jit(jax.grad(product, argnums=(0, 1, 2, 3)))(*arrays)
    for mine, theirs in zip(grads, whole):
        assert error(torch.from_numpy(np.array(mine)), theirs.grad) <= 3e-6


def test_wrong_sinks_are_told_what_to_do():
    q, k, v, _ = inputs()
    for sinks in ([1.0] * 3, 1.0, np.zeros((4, 1))):
        with raises(ValueError, "expected a score for each of 4 query heads"):
            _whole(q, k, v, sinks=sinks)
    with raises(ValueError, "leave async_op out"):
        _whole(q, k, v, sinks=SINKS, async_op=True)
    with raises(ValueError, "leave sinks out"):
        ra.dilated_attention(q, k, v, [8, LENGTH], [1, 2], mix_grad="detached", sinks=SINKS)
