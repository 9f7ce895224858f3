"""Attention as PyTorch modules: exact, on all ranks or some."""

import copy
import io

import pytest
import rueda.attention as ra
import rueda.torch as hvd
import torch
from attention_oracle import LENGTH, blocks_of, causal, dense, dilated, error, inputs
from expect import raises
from worlds import ranks

WORLD = "torch"

PAIRS = ([8, 24], [1, 3])
DILATED = list(zip(*PAIRS))
EMBED, HEADS = 32, 4


def expect_exact(layer, times, layout="contiguous", process_set=None, **options):
    """Output and gradients of a module without projections, against the whole in float64."""
    spread = {"layout": layout, "process_set": process_set}
    *qkv, dout = inputs()
    whole = [x.double().requires_grad_() for x in qkv]
    wanted, _ = dense(*whole, times)
    wanted.backward(dout.double())
    own = [ra.shard_sequence(x, **spread).requires_grad_() for x in qkv]
    out = layer(*own, **options)
    out.backward(ra.shard_sequence(dout, **spread))
    for got, full in zip((out.detach(), *(x.grad for x in own)),
                         (wanted.detach(), *(x.grad for x in whole))):  # fmt: skip
        together = ra.unshard_sequence(got, length=LENGTH, **spread)
        assert error(together, full) <= 2e-6


def expect_exact_layer(make, times, layout="contiguous", process_set=None, norm=True):
    """Output and averaged gradients of a module with projections, against a float64 copy."""
    spread = {"layout": layout, "process_set": process_set}
    torch.manual_seed(3)
    layer = make()
    x, dout = torch.randn(2, LENGTH, EMBED), torch.randn(2, LENGTH, EMBED)
    whole, full = copy.deepcopy(layer).double(), x.double().requires_grad_()
    parts = [p(full).unflatten(-1, (-1, EMBED // HEADS)) for p in (whole.q_proj, whole.k_proj, whole.v_proj)]
    between = dense(*parts, times)[0].flatten(-2)
    wanted = whole.out_proj(whole.norm(between) if norm else between)
    wanted.backward(dout.double())
    own = ra.shard_sequence(x, **spread).requires_grad_()
    out = layer(own, length=LENGTH)
    out.backward(ra.shard_sequence(dout, **spread))
    assert error(ra.unshard_sequence(out.detach(), length=LENGTH, **spread), wanted.detach()) <= 2e-6
    assert error(ra.unshard_sequence(own.grad, length=LENGTH, **spread), full.grad) <= 4e-6
    for (name, mine), theirs in zip(layer.named_parameters(), whole.parameters()):
        total = hvd.allreduce(mine.grad, op=hvd.Sum, process_set=process_set or hvd.global_process_set)
        assert float((total - theirs.grad).norm()) <= 4e-6 * float(whole.q_proj.weight.grad.norm()), name


@ranks(2)
def test_modules_of_one_function_are_exact():
    everything = torch.ones(1, LENGTH, LENGTH)
    expect_exact(ra.RingAttention(), everything)
    expect_exact(ra.RingAttention(causal=True, layout="zigzag"), causal(), "zigzag")
    expect_exact(ra.RingAttention(layout="striped"), causal(), "striped", is_causal=True)
    expect_exact(ra.UlyssesAttention(causal=True), causal(), length=LENGTH)
    expect_exact(ra.RingDilatedAttention(*PAIRS), dilated(DILATED) * causal(), is_causal=True)
    config = {"segment_lengths": PAIRS[0], "dilation_rates": PAIRS[1], "ring_size": 2, "dropout": 0.0}
    expect_exact(ra.RingDilatedAttentionProduction(config), dilated(DILATED))
    split = ra.RingDilatedAttention(*PAIRS, head_groups="split", use_flash_attention=True)
    expect_exact(split, dilated(DILATED, head_groups="split"))
    sparse = ra.BlockSparseRingDilatedAttention(
        *PAIRS, {"pattern_type": "local_window", "sparsity_ratio": 0.5, "block_size": 8}
    )
    times = dilated(DILATED) * blocks_of(sparse.mask(LENGTH))
    assert 0 < times.sum() < dilated(DILATED).sum()
    expect_exact(sparse, times)


@ranks(2)
def test_layers_with_projections_are_exact():
    sizes = {"embed_dim": EMBED, "num_heads": HEADS}
    expect_exact_layer(
        lambda: ra.RingAttention(**sizes, causal=True, layout="zigzag"), causal(), "zigzag", norm=False
    )
    expect_exact_layer(
        lambda: ra.RingDistributedDilatedAttention(EMBED, HEADS, *PAIRS, causal=True),
        dilated(DILATED, HEADS, 1) * causal(),
    )
    sparse = {"sparsity_ratio": 0.5, "block_size": 8, "pattern_type": "random"}
    mask = ra.BlockMask.pattern("random", LENGTH, 8, density=0.5)
    expect_exact_layer(
        lambda: ra.BlockSparseRingDistributedDilatedAttention(EMBED, HEADS, *PAIRS, **sparse),
        dilated(DILATED, HEADS, 1) * blocks_of(mask),
    )


@ranks(2)
def test_whole_sequences_in_and_out():
    """``sequence_parallel``: the same numbers as one process, gradients after averaging."""
    x, dout = torch.randn(2, LENGTH, EMBED, generator=torch.Generator().manual_seed(5)), None
    results = []
    for parallel in (False, True):
        for kind in (ra.DistributedImprovedMultiheadDilatedAttention, ra.DistributedMultiheadDilatedAttention):
            torch.manual_seed(3)
            layer = kind(EMBED, HEADS, *PAIRS, sequence_parallel=parallel)
            full = x.clone().requires_grad_()
            out, nothing = layer(full, is_causal=True, need_weights=True)
            assert nothing is None and out.shape == x.shape
            dout = torch.linspace(-1, 1, out.numel()).reshape(out.shape) if dout is None else dout
            out.backward(dout)
            grads = [hvd.allreduce(p.grad) for p in (full, *layer.parameters())]
            results.append([out.detach(), *grads])
    # Of all gradients: that of the keys' bias is nothing but rounding.
    most = max(float(grad.norm()) for grad in results[0])
    for one, *others in zip(*results):
        assert all(float((other - one).norm()) <= 4e-6 * most for other in others)
    torch.manual_seed(3)
    local = ra.MultiheadDilatedAttention(EMBED, HEADS, dilation_rates=PAIRS[1], segment_lengths=PAIRS[0])
    assert torch.equal(local(x, is_causal=True), results[0][0])


@ranks(4)
def test_data_and_sequence_parallel():
    """Two sequences on four ranks, each shared by two neighbours."""
    sequence, data = ra.sequence_parallel_sets(2)
    assert sequence.ranks == [hvd.rank() // 2 * 2, hvd.rank() // 2 * 2 + 1]
    assert data.ranks == [hvd.rank() % 2, hvd.rank() % 2 + 2]
    assert ra.sequence_parallel_sets(2)[0] is sequence
    layer = ra.RingAttention(causal=True, layout="zigzag", ring_size=2)
    expect_exact(layer, causal(), "zigzag", sequence)
    expect_exact_layer(
        lambda: ra.RingDistributedDilatedAttention(EMBED, HEADS, *PAIRS, ring_size=2),
        dilated(DILATED, HEADS, 1), process_set=sequence,
    )  # fmt: skip
    alone = ra.RingAttention(ring_size=1)
    q, k, v, _ = inputs()
    q = q + hvd.rank()
    wanted, _ = dense(q, k, v, torch.ones(1, LENGTH, LENGTH))
    assert error(alone(q, k, v), wanted) <= 1e-6
    with raises(ValueError, "do not divide 4 ranks"):
        ra.RingAttention(ring_size=3)


def test_modules_of_one_process_need_no_job():
    q, k, v, _ = inputs()
    wanted, _ = dense(q, k, v, dilated(DILATED) * causal())
    layer = ra.DilatedAttention(*PAIRS)
    assert error(layer(q, k, v, is_causal=True), wanted) <= 1e-6
    layer = ra.MultiheadDilatedAttention(EMBED, HEADS, PAIRS[1], PAIRS[0])
    x = torch.randn(2, LENGTH, EMBED)
    out = layer(x)
    kept = io.BytesIO()
    torch.save(layer, kept)
    kept.seek(0)
    for other in (copy.deepcopy(layer), torch.load(kept, weights_only=False)):
        assert torch.equal(other(x), out)
    names = {name.split(".")[0] for name in layer.state_dict()}
    assert names == {"q_proj", "k_proj", "v_proj", "norm", "out_proj"}


def test_what_cannot_be_is_refused():
    with pytest.raises(NotImplementedError, match=r"torch.nn.Dropout behind"):
        ra.DilatedAttention(*PAIRS, attention_dropout=0.1)
    with pytest.raises(NotImplementedError, match="model_parallel"):
        ra.MultiheadDilatedAttention(EMBED, HEADS, PAIRS[1], PAIRS[0], model_parallel=True)
    with pytest.raises(TypeError, match="no argument 'sparsity'"):
        ra.DilatedAttention(*PAIRS, sparsity=0.1)
    with pytest.raises(ValueError, match="swapped"):
        ra.DilatedAttention(PAIRS[1], PAIRS[0])
    with pytest.raises(ValueError, match="they are pairs"):
        ra.DilatedAttention([8, 16, 32], [1, 2])
    with pytest.raises(ValueError, match="no multiple of num_heads"):
        ra.MultiheadDilatedAttention(30, 4, PAIRS[1], PAIRS[0])
    q, k, v, _ = inputs()
    with pytest.raises(NotImplementedError, match="masks given as tensors"):
        ra.DilatedAttention(*PAIRS)(q, k, v, attention_mask=torch.ones(1))
