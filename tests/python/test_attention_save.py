"""What attention keeps for backward (``save``): the same bits, less memory or fewer messages, as promised."""

import copy
import functools

import pytest
import rueda.attention as ra
import rueda.torch as hvd
import torch
from attention_oracle import LENGTH, inputs
from expect import raises
from rueda.attention import _calls
from rueda.attention.device import _ring
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from worlds import ranks

WORLD = "torch"

EMBED, HEADS = 32, 4
PAIRS = ([8, 24], [1, 3])
WAYS = (None, "qkv", "out+lse")
MASK = ra.BlockMask.random(LENGTH, 8, density=0.5, seed=3)
SCHEMES = {
    "ring": (functools.partial(ra.ring_attention, causal=True), "zigzag"),
    "queries travel": (functools.partial(ra.ring_attention, rotate="q"), "contiguous"),
    "ulysses": (functools.partial(ra.ulysses_attention, causal=True), "striped"),
    "dilated": (lambda q, k, v, **o: ra.ring_dilated_attention(q, k, v, *PAIRS, mix_grad="detached", **o), "contiguous"),
    "block-sparse": (lambda q, k, v, **o: ra.ring_block_sparse_attention(q, k, v, MASK, **o), "contiguous"),
    "local": (lambda q, k, v, **o: ra.dilated_attention(q, k, v, *PAIRS, **o), "contiguous"),
}  # fmt: skip


def sent():
    """Bytes of messages that this rank has sent."""
    found = hvd.counters()
    return found["shm_bytes"] + found["tcp_bytes"] + found["mpi_bytes"]


def same(some, others):
    assert len(some) == len(others)
    for at, (one, other) in enumerate(zip(some, others)):
        assert torch.equal(one, other), at


def shards(layout="contiguous"):
    return [ra.shard_sequence(x, layout=layout) for x in inputs()]


def gradients(call, layout="contiguous", **options):
    """Output, log-sum-exp and gradients, that of the log-sum-exp in them; and the bytes sent forward and backward."""
    q, k, v, dout = shards(layout)
    own = [x.requires_grad_() for x in (q, k, v)]
    begin = sent()
    out, lse = call(*own, layout=layout, return_lse=True, **options)
    middle = sent()
    seen = ~torch.isinf(lse)
    ((out * dout).sum() + lse[seen].sin().sum()).backward()
    return [out.detach(), lse.detach(), *(x.grad for x in own)], (middle - begin, sent() - middle)


@ranks(1, 2, 3)
def test_all_ways_give_the_same_bits_and_qkv_sends_one_more_forward():
    for name, (call, layout) in SCHEMES.items():
        spread = {} if name in ("local", "block-sparse") else {"length": LENGTH}
        wanted, (forward, backward) = gradients(call, layout, **spread)
        assert (forward > 0) == (hvd.size() > 1 and name != "local"), name
        for save in WAYS[1:]:
            found, counts = gradients(call, layout, save=save, **spread)
            same(found, wanted)
            assert counts == (forward, backward + forward * (save == "qkv")), (name, save)


@ranks(2)
def test_calls_that_are_waited_for_later_and_gradients_twice():
    q, k, v, dout = shards("zigzag")
    found = []
    for save in WAYS:
        own = [x.clone().requires_grad_() for x in (q, k, v)]
        request = ra.ring_attention(*own, layout="zigzag", causal=True, length=LENGTH, async_op=True, save=save)
        out = request.wait()
        out.backward(dout, retain_graph=True)
        out.backward(dout)
        found.append([out.detach(), *(x.grad for x in own)])
    same(found[1], found[0])
    same(found[2], found[0])
    local = functools.partial(ra.dilated_attention, segment_lengths=[4], dilation_rates=[1], save="qkv")
    x = q.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        (grad,) = torch.autograd.grad(local(x, k, v).square().sum(), x, create_graph=True)
        grad.sum().backward()


@ranks(1, 2)
def test_what_is_kept_between_forward_and_backward():
    for call, layout in (SCHEMES["ring"], SCHEMES["ulysses"]):
        *qkv, _ = shards(layout)
        for save, count in ((None, 5), ("qkv", 3), ("out+lse", 5)):
            own, packed = [x.clone().requires_grad_() for x in qkv], []
            with torch.autograd.graph.saved_tensors_hooks(lambda x, to=packed: to.append(x.shape) or x, lambda x: x):
                out, lse = call(*own, layout=layout, length=LENGTH, return_lse=True, save=save)
            assert len(packed) == count and packed[:3] == [x.shape for x in own]
            memory = [StorageWeakRef(x.untyped_storage()) for x in (out, lse)]
            total = out.sum() + 0 * lse.sum()
            del out, lse
            assert [each.expired() for each in memory] == [save == "qkv"] * 2
            total.backward()
            del total
            assert all(each.expired() for each in memory)


# ---- checkpointing ----


class Counted:
    """How many attention calls have been started, of a forward."""

    def __enter__(self):
        self.count, self._before = 0, _calls.start_forward
        self._run = _ring.run
        _calls.start_forward, _ring.run = self._of(self._before), self._forwards(self._run)
        return self

    def _of(self, start):
        def counted(*arguments):
            self.count += 1
            return start(*arguments)

        return counted

    def _forwards(self, run):
        def counted(called, tensor):
            self.count += not called[0].program.backward
            return run(called, tensor)

        return counted

    def __exit__(self, *_):
        _calls.start_forward, _ring.run = self._before, self._run


def layer_of(save, kind=ra.RingAttention, *arguments, **options):
    torch.manual_seed(3)
    return kind(*(arguments or (EMBED, HEADS)), causal=True, layout="zigzag", save=save, **options)


class Block(torch.nn.Module):
    """Two calls of attention, and dropout, whose random numbers are the same again."""

    def __init__(self, save):
        super().__init__()
        self.first, self.second = (
            layer_of(save), layer_of(save, ra.RingDistributedDilatedAttention, EMBED, HEADS, *PAIRS)
        )  # fmt: skip
        self.norm = torch.nn.LayerNorm(EMBED)

    def forward(self, x):
        x = x + torch.nn.functional.dropout(self.first(self.norm(x), length=LENGTH), 0.1)
        return x + self.second(x, length=LENGTH).relu()


def tokens():
    torch.manual_seed(5)
    return ra.shard_sequence(torch.randn(2, LENGTH, EMBED), layout="zigzag")


def trained(model, run, steps=1):
    """Loss, gradients and values of the parameters; (bytes sent, forwards started) of a step."""
    x, optimizer = tokens().requires_grad_(), torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(7)
    with Counted() as calls:
        before = sent()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = run(model, x).square().mean()
            loss.backward()
            optimizer.step()
        counts = (sent() - before) // steps, calls.count // steps
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters()), *(p.detach() for p in model.parameters())], counts


def plain(model, x):
    for block in model:
        x = block(x)
    return x


def checkpointed(model, x, **options):
    for block in model:
        x = checkpoint(block, x, **options)
    return x


def transformer(save):
    torch.manual_seed(3)
    return torch.nn.Sequential(Block(save), Block(save))


@ranks(1, 2, 3)
def test_checkpointed_layers_send_and_compute_nothing_again():
    wanted, (bytes_sent, forwards) = trained(transformer(None), plain, steps=2)
    with torch.no_grad():
        before = sent()
        plain(transformer(None), tokens())
        forward = sent() - before
    assert forwards == 4 and (forward > 0) == (hvd.size() > 1)
    for use_reentrant in (False, True):
        run = functools.partial(checkpointed, use_reentrant=use_reentrant)
        found, counts = trained(transformer("out+lse"), run, steps=2)
        same(found, wanted)
        assert counts == (bytes_sent, forwards), use_reentrant
        found, counts = trained(transformer(None), run, steps=2)
        same(found, wanted)
        assert counts == (bytes_sent + forward, 2 * forwards), use_reentrant
    found, counts = trained(transformer("out+lse"), lambda model, x: plain([functools.partial(hvd.checkpoint, b) for b in model], x))
    assert counts == (bytes_sent, forwards)


@ranks(2)
def test_other_ways_to_checkpoint():
    wanted, (bytes_sent, forwards) = trained(transformer(None), plain)

    def to_the_end(model, x):
        with set_checkpoint_early_stop(False):
            y = checkpointed(model, x, use_reentrant=False, preserve_rng_state=True)
        return y

    def twice(model, x):
        y = checkpointed(model, x, use_reentrant=False)
        torch.autograd.grad(y.square().mean(), x, retain_graph=True)
        return y

    def saving_elsewhere(model, x):
        with torch.autograd.graph.save_on_cpu():
            return checkpointed(model, x, use_reentrant=False)

    for run in (to_the_end, saving_elsewhere):
        found, counts = trained(transformer("out+lse"), run)
        same(found, wanted)
        assert counts == (bytes_sent, forwards), run
    found, counts = trained(transformer("out+lse"), twice)
    same(found, wanted)
    assert counts[1] == forwards
    for outer in (False, True):  # a part of a part computes again where the outer one does
        for inner in (False, True):

            def nested(model, x, outer=outer, inner=inner):
                return checkpoint(functools.partial(checkpointed, use_reentrant=inner), model, x, use_reentrant=outer)

            found, counts = trained(transformer("out+lse"), nested)
            same(found, wanted)
            assert forwards <= counts[1] <= 2 * forwards


@ranks(1, 2)
def test_what_is_kept_ends_with_the_graph():
    layer, found = layer_of("out+lse"), []
    inner = layer._attend

    def seen(*arguments, **options):
        out = inner(*arguments, **options)
        found.append(StorageWeakRef(out.untyped_storage()))
        return out

    layer._attend = seen
    x = tokens().requires_grad_()
    for use_reentrant in (False, True):
        run = functools.partial(checkpoint, layer, x, length=LENGTH) if not use_reentrant else functools.partial(
            checkpoint, lambda x: layer(x, length=LENGTH), x
        )  # fmt: skip
        found.clear()
        y = run(use_reentrant=use_reentrant)
        assert [each.expired() for each in found] == [False]
        y.sum().backward()
        del y
        assert [each.expired() for each in found] == [True, True]
        found.clear()
        run(use_reentrant=use_reentrant)  # without a backward
        with torch.no_grad():
            run(use_reentrant=use_reentrant)
            layer(x, length=LENGTH)
        assert [each.expired() for each in found] == [True] * 3


def test_a_part_that_does_something_else_again_is_told_so():
    own = [x.requires_grad_() for x in inputs()[:3]]
    attend = functools.partial(ra.dilated_attention, segment_lengths=[8], dilation_rates=[1], length=LENGTH, save="out+lse")
    for use_reentrant in (False, True):
        calls = []

        def otherwise(q, k, v, calls=calls):
            calls.append(1)
            return attend(q, k, v, causal=len(calls) == 1) * 2

        def more(q, k, v, calls=calls):
            calls.append(1)
            out = attend(q, k, v) * 2
            return out if len(calls) == 1 else attend(out, k, v) * out

        def in_place(q, k, v):
            return attend(q, k, v).mul_(2).sin()

        for part, text in ((otherwise, "the same each time"), (in_place, "out.clone()")):
            calls.clear()
            out = checkpoint(part, *own, use_reentrant=use_reentrant)
            with pytest.raises(RuntimeError, match=text):
                out.sum().backward()
        calls.clear()
        out = checkpoint(more, *own, use_reentrant=use_reentrant)
        if use_reentrant:
            with pytest.raises(RuntimeError, match="the same each time"):
                out.sum().backward()


@ranks(2)
def test_every_module_takes_it():
    sparse = {"sparsity_ratio": 0.5, "block_size": 8}
    makes = [
        lambda save: ra.RingAttention(EMBED, HEADS, kv_heads=2, save=save),
        lambda save: ra.UlyssesAttention(EMBED, HEADS, save=save),
        lambda save: ra.RingDistributedDilatedAttention(EMBED, HEADS, *PAIRS, save=save),
        lambda save: ra.MultiheadDilatedAttention(EMBED, HEADS, PAIRS[1], PAIRS[0], save=save),
        lambda save: ra.BlockSparseRingDistributedDilatedAttention(EMBED, HEADS, *PAIRS, **sparse, save=save),
        lambda save: ra.DistributedMultiheadDilatedAttention(EMBED, HEADS, *PAIRS, sequence_parallel=True, save=save),
    ]
    whole = torch.randn(2, LENGTH, EMBED, generator=torch.Generator().manual_seed(1))
    for make in makes:
        torch.manual_seed(3)
        layers = [make(save) for save in WAYS]
        found = []
        for layer in layers:
            layer.load_state_dict(copy.deepcopy(layers[0].state_dict()))
            takes_whole = isinstance(layer, ra.DistributedMultiheadDilatedAttention)
            own = (whole.clone() if takes_whole else ra.shard_sequence(whole)).requires_grad_()
            with Counted() as calls:
                out = checkpoint(lambda y, layer=layer: layer(y).sin(), own, use_reentrant=False)
                out.square().mean().backward()
            found.append([out.detach(), own.grad, *(p.grad for p in layer.parameters())])
            assert calls.count == {None: 2, "qkv": 3, "out+lse": 1}[layer.options["save"]]
        same(found[1], found[0])
        same(found[2], found[0])


# ---- tensors of a GPU, as far as there is none ----


def computed_as_on_a_gpu():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _ring._on_cpu = True
    try:
        for name in ("ring", "queries travel", "ulysses"):
            call, layout = SCHEMES[name]
            found = []
            for save in WAYS:
                with Counted() as calls:
                    found.append(gradients(call, layout, length=LENGTH, save=save)[0])
                assert calls.count == 1 + (save == "qkv")
            same(found[1], found[0])
            same(found[2], found[0])
        wanted, (bytes_sent, forwards) = trained(transformer(None), plain)
        runs = [functools.partial(checkpointed, use_reentrant=x) for x in (False, True)]
        runs.append(lambda model, x: plain([functools.partial(hvd.checkpoint, block) for block in model], x))
        for run in runs:
            found, counts = trained(transformer("out+lse"), run)
            same(found, wanted)
            assert counts == (bytes_sent, forwards)
    finally:
        _ring._on_cpu = False
        torch.set_num_threads(threads)


@ranks(2, 3)
def test_tensors_of_a_gpu_do_the_same():
    computed_as_on_a_gpu()


@pytest.mark.parametrize("degree", [1, 3])
def test_virtual_rings_do_the_same(degree):
    ring, found = ra.VirtualRing(3), []
    qkv, dout = inputs()[:3], inputs()[3]
    for save in WAYS:
        own = [x.clone().requires_grad_() for x in qkv]
        with Counted() as calls:
            outs = ring.attention(*(ring.shard(x) for x in own), causal=True, ulysses_degree=degree, save=save)
            out = ring.unshard(outs)
            out.backward(dout)
        assert calls.count == 1 + (save == "qkv")
        found.append([out.detach(), *(x.grad for x in own)])
    same(found[1], found[0])
    same(found[2], found[0])


# ---- mistakes ----


@ranks(2)
def test_a_wrong_way_is_told_and_ranks_that_disagree_do_not_hang():
    q, k, v, _ = shards()
    for call in (ra.ring_attention, ra.ulysses_attention, lambda *x, **o: ra.RingAttention(**o)(*x)):
        with raises(ValueError, "save is 'lse', expected 'qkv'", "'out+lse'"):
            call(q, k, v, save="lse")
    with raises(ValueError, "save is True"):
        ra.ring_attention(*(x.numpy() for x in (q, k, v)), save=True)
    for call in (ra.ring_attention, ra.ulysses_attention):
        for saves in ((None, "qkv"), ("qkv", "out+lse")):
            own = [x.clone().requires_grad_() for x in (q, k, v)]
            out = call(*own, length=LENGTH, save=saves[hvd.rank()])
            with raises(hvd.HorovodInternalError, f"rank {1 - hvd.rank()}: ", "same arguments"):
                out.sum().backward()
            same([call(q, k, v, length=LENGTH)], [out.detach()])
