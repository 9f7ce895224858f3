"""Attention under torch.compile: one graph, the same bits."""

import pytest
import rueda.attention as ra
import rueda.torch as hvd
import torch
from attention_oracle import LENGTH, inputs
from expect import raises
from rueda.torch import _compiler
from torch.utils.checkpoint import checkpoint
from worlds import ranks, results, run_ranks

WORLD = "compile"

if _compiler.graph is None:
    pytest.skip("this PyTorch cannot keep calls in their order", allow_module_level=True)

PAIRS = ([8, 24], [1, 3])
EMBED, HEADS = 32, 4


def compiled(function, backend="aot_eager"):
    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def outputs_and_gradients(function, tensors):
    tensors = [x.clone().requires_grad_() for x in tensors]
    outs = function(*tensors)
    sum((out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum() for out in outs).backward()
    return [out.detach() for out in outs], [x.grad for x in tensors]


def expect_same(graph, eager, tolerance=0):
    """The same bits; of gradients a graph may add the parts in another order."""
    assert len(graph[0]) == len(eager[0])
    for at, (mine, wanted) in enumerate(zip(graph[0], eager[0])):
        off = float((mine - wanted).norm()) / float(wanted.norm())
        assert torch.equal(mine, wanted) or off <= tolerance, f"output {at} is off by {off}"
    for at, (mine, wanted) in enumerate(zip(graph[1], eager[1])):
        off = float((mine - wanted).norm()) / float(wanted.norm() + 1)
        assert off <= max(1e-6, 10 * tolerance), f"gradient {at} is off by {off}"


@ranks(2)
def test_functions_are_one_graph_and_give_the_same_bits():
    mask = ra.BlockMask.random(LENGTH, 8, density=0.5, seed=3)

    def every_scheme(q, k, v):
        own = [ra.shard_sequence(x, layout="zigzag") for x in (q, k, v)]
        spread = {"layout": "zigzag", "length": LENGTH}
        outs = [
            *ra.ring_attention(*own, causal=True, **spread, return_lse=True),
            ra.ring_attention(*own, layout="zigzag", softmax_scale=0.3, rotate="q"),
            ra.ulysses_attention(*own, causal=True, window_size=(9, 0), **spread),
            ra.all_gather_attention(*own, **spread),
            ra.ring_dilated_attention(*own, *PAIRS, **spread),
            ra.ring_block_sparse_attention(*own, mask, layout="zigzag"),
            ra.ring_attention(*(x.transpose(1, 2) for x in own), qkv_format="bhsd", **spread),
            ra.dilated_attention(q, k, v, *PAIRS),
            ra.ring_attention_varlen(*(x[0] for x in own), [0, 9, LENGTH], layout="zigzag"),
        ]
        return [*outs, ra.unshard_sequence(outs[0], **spread)]

    qkv = inputs()[:3]
    eager = outputs_and_gradients(every_scheme, qkv)
    graph = compiled(every_scheme)
    for _ in range(2):
        expect_same(outputs_and_gradients(graph, qkv), eager)


@ranks(2)
def test_modules_are_one_graph_and_give_the_same_bits():
    torch.manual_seed(3)
    sparse = {"sparsity_ratio": 0.5, "block_size": 8}
    layers = torch.nn.ModuleList([
        ra.RingAttention(EMBED, HEADS, kv_heads=2, causal=True),
        ra.UlyssesAttention(EMBED, HEADS),
        ra.RingDistributedDilatedAttention(EMBED, HEADS, *PAIRS),
        ra.MultiheadDilatedAttention(EMBED, HEADS, PAIRS[1], PAIRS[0]),
        ra.BlockSparseRingDistributedDilatedAttention(EMBED, HEADS, *PAIRS, **sparse),
    ])  # fmt: skip

    def model(x):
        for layer in layers:
            x = x + layer(x, length=LENGTH)
        return [x]

    x = ra.shard_sequence(torch.randn(2, LENGTH, EMBED, generator=torch.Generator().manual_seed(1)))
    results = []
    for function in (model, compiled(model)):
        layers.zero_grad()
        results.append(outputs_and_gradients(function, [x]))
        results[-1][1].extend(p.grad.clone() for p in layers.parameters())
    expect_same(*results)


def sent():
    found = hvd.counters()
    return found["shm_bytes"] + found["tcp_bytes"] + found["mpi_bytes"]


def counted(function, x, run=outputs_and_gradients):
    """Outputs and gradients, and the bytes of messages that this rank has sent."""
    before = sent()
    return run(function, [x]), sent() - before


@ranks(2)
def test_what_is_kept_for_backward_is_what_save_says():
    random = torch.Generator().manual_seed(1)
    x = ra.shard_sequence(torch.randn(2, LENGTH, EMBED, generator=random), layout="zigzag")

    def layer_of(save):
        torch.manual_seed(3)
        layer = ra.RingAttention(EMBED, HEADS, causal=True, layout="zigzag", save=save)
        return lambda x: layer(x, length=LENGTH)

    plain = layer_of(None)
    expected, count = counted(lambda x: [plain(x)], x)
    with torch.no_grad():
        forward = counted(plain, x, lambda f, xs: f(*xs))[1]
    assert 0 < forward < count
    again, kept = compiled(layer_of("qkv")), compiled(layer_of("out+lse"))
    ways = [(again, forward), (kept, 0)]
    ways += [(lambda x, how=how: checkpoint(kept, x, use_reentrant=how), 0) for how in (False, True)]
    for way, more in ways:
        graph, graph_count = counted(lambda x, way=way: [way(x)], x)
        expect_same(graph, expected)
        assert graph_count == count + more


@ranks(2)
def test_errors_come_when_a_graph_runs():
    q, k, v = (ra.shard_sequence(x) for x in inputs()[:3])
    fast = compiled(lambda q, k, v: ra.ring_attention(q, k, v, length=LENGTH))
    wanted = fast(q, k, v)
    with raises(ValueError, "use shard_sequence"):
        compiled(lambda q, k, v: ra.ring_attention(q, k, v, length=LENGTH + 4))(q, k, v)
    assert torch.equal(fast(q, k, v), wanted)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = ra.RingAttention(EMBED, HEADS, kv_heads=2, causal=True, layout="zigzag")
        self.before, self.between = torch.nn.LayerNorm(EMBED), torch.nn.LayerNorm(EMBED)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(EMBED, 4 * EMBED), torch.nn.GELU(), torch.nn.Linear(4 * EMBED, EMBED)
        )

    def forward(self, x):
        x = x + self.attention(self.before(x), length=LENGTH)
        return x + self.feed(self.between(x))


def a_transformer_by_inductor():
    def functions(q, k, v):
        spread = {"layout": "zigzag", "length": LENGTH}
        own = [ra.shard_sequence(x, layout="zigzag") for x in (q, k, v)]
        out, lse = ra.ring_attention(*own, causal=True, **spread, return_lse=True)
        packed = ra.ring_attention_varlen(*(x[0] for x in own), [0, 9, LENGTH], layout="zigzag")
        outs = [out * 2 + 1, lse, packed, ra.ulysses_attention(*(x.relu() for x in own), **spread)]
        return [*outs, ra.unshard_sequence(outs[0], **spread)]

    qkv = inputs()[:3]
    eager = outputs_and_gradients(functions, qkv)
    expect_same(outputs_and_gradients(compiled(functions, "inductor"), qkv), eager, 1e-6)

    torch.manual_seed(5)
    blocks = torch.nn.Sequential(Block(), Block())
    random = torch.Generator().manual_seed(1)
    x = ra.shard_sequence(torch.randn(2, LENGTH, EMBED, generator=random), layout="zigzag")
    found = []
    for function in (lambda x: [blocks(x)], compiled(lambda x: [blocks(x)], "inductor")):
        blocks.zero_grad()
        found.append(outputs_and_gradients(function, [x]))
        found[-1][1].extend(p.grad.clone() for p in blocks.parameters())
    expect_same(found[1], found[0], 1e-6)


@pytest.mark.slow
def test_inductor_agrees_within_rounding():
    results(run_ranks(2, a_transformer_by_inductor))
