"""Softcap and ALiBi, against attention written out in float64."""

import numpy as np
import pytest
import rueda.attention as ra
import torch
from attention_oracle import LENGTH, causal, check, dense, error, inputs
from expect import raises
from rueda.attention import _groups
from worlds import ranks

WORLD = "torch"
EVERYTHING = torch.ones(1, LENGTH, LENGTH)
SLOPES = (0.5, 0.25, 0.0625, -0.125)
OF_EACH = [[0.5, 0.25, 0.0625, 0.0], [0.1, 0.2, 0.3, 0.4]]


@ranks(3)
def test_every_function_is_exact_with_softcap_and_slopes():
    for softcap, slopes in ((2.0, None), (0.0, SLOPES), (1.5, OF_EACH)):
        changed = {"softcap": softcap, "alibi_slopes": slopes}
        expected = {"softcap": softcap, "slopes": slopes}
        for layout in ("contiguous", "zigzag", "striped"):
            check(
                lambda *x, c=changed, **o: ra.ring_attention(*x, causal=True, **c, **o), causal(), layout,
                **expected,
            )  # fmt: skip
        check(lambda *x, c=changed, **o: ra.ring_attention(*x, rotate="q", **c, **o), EVERYTHING, **expected)
        check(lambda *x, c=changed, **o: ra.ulysses_attention(*x, **c, **o), EVERYTHING, "zigzag", **expected)
        check(lambda *x, c=changed, **o: ra.all_gather_attention(*x, **c, **o), EVERYTHING, **expected)


@ranks(2)
def test_ranks_that_differ_are_told():
    q, k, v, _ = (ra.shard_sequence(x) for x in inputs())
    import rueda as hvd

    with raises(Exception, "same arguments"):
        ra.ring_attention(q, k, v, softcap=10.0 + hvd.rank())


@ranks(2)
def test_shims_pass_them_on():
    import rueda.compat.ring_flash_attn as rfa
    from rueda.compat.yunchang import UlyssesAttention

    slopes = torch.tensor(SLOPES)
    q, k, v, _ = (ra.shard_sequence(x, layout="zigzag") for x in inputs())
    wanted = ra.ring_attention(q, k, v, causal=True, layout="zigzag", alibi_slopes=SLOPES)
    assert torch.equal(rfa.zigzag_ring_flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes), wanted)
    q, k, v, _ = (ra.shard_sequence(x) for x in inputs())
    got = UlyssesAttention()(q, k, v, softcap=2.0, alibi_slopes=slopes)
    assert error(got, ra.ring_attention(q, k, v, softcap=2.0, alibi_slopes=SLOPES).double()) <= 1e-6


def _local(q, k, v, **options):
    return ra.ring_attention(q, k, v, process_set=_groups.local, **options)


def test_numpy_packed_keys_and_modules():
    q, k, v, _ = inputs()
    k, v = k[:, :30], v[:, :30]
    times = torch.tril(torch.ones(LENGTH, LENGTH), 30 - LENGTH)[None, :, :30]
    wanted, _ = dense(q, k, v, times, 3.0, SLOPES)
    got = _local(q.numpy(), k.numpy(), v.numpy(), causal=True, softcap=3, alibi_slopes=np.array(SLOPES, np.float32))
    assert error(torch.from_numpy(got), wanted) <= 1e-6
    module = ra.RingAttention(causal=True, process_set=_groups.local, softcap=3.0, alibi_slopes=SLOPES)
    assert torch.equal(module(q, k, v), torch.from_numpy(got))
    dilated = ra.DilatedAttention([LENGTH], [1], softcap=3.0, alibi_slopes=SLOPES)
    whole, _ = dense(q, q[:, :, :2], q[:, :, :2], EVERYTHING, 3.0, SLOPES)
    assert error(dilated(q, q[:, :, :2].contiguous(), q[:, :, :2].contiguous()), whole) <= 1e-6


def test_compiled_it_is_the_same():
    q, k, v, _ = inputs()

    def call(q, k, v):
        return _local(q, k, v, length=LENGTH, softcap=2.0, alibi_slopes=SLOPES)

    assert torch.equal(torch.compile(call, fullgraph=True, backend="eager")(q, k, v), call(q, k, v))


def test_decoding_with_them():
    q, k, v, _ = inputs()
    last = q[:, -2:].contiguous()
    times = torch.tril(torch.ones(2, LENGTH), LENGTH - 2)[None]
    for slopes in (SLOPES, OF_EACH):
        wanted, _ = dense(last, k, v, times, 2.0, slopes)
        got = ra.decode_attention(
            last, k, v, [LENGTH] * 2, softcap=2.0, alibi_slopes=slopes, process_set=_groups.local
        )
        assert error(got, wanted) <= 1e-6


def test_kernels_without_them_refuse_by_name():
    q, k, v, _ = inputs()
    ra.use_kernel("aten")
    try:
        with pytest.raises(ValueError, match="'aten'.*softcap"):
            _local(q, k, v, softcap=2.0)
    finally:
        ra.use_kernel("auto")
