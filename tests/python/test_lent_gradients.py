"""DistributedOptimizer at its defaults: backward's gradients lie in memory that ranks share, and scripts see no difference."""

import copy
import ctypes
import gc
import io
import os
import pickle
import re
import threading

import rueda.torch as hvd
import torch
from expect import is_shared, raises
from rueda import _ffi
from rueda._runtime import runtime
from rueda.torch import _lent_memory
from rueda.torch._lent_memory import window
from worlds import ranks, results, run_ranks

WORLD = "torch"
WIDTH = 160  # a weight has 100 KiB


def make_model(layers=4, width=WIDTH):
    torch.manual_seed(1)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])


def wrap(model, prefix="", **options):
    named = [(prefix + name, p) for name, p in model.named_parameters()]
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=named, **options)


def batch(step):
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))


def backward(model, step, **options):
    model(batch(step)).square().mean().backward(**options)


def shared(model):
    """Of each weight's gradient, whether it lies there."""
    return [is_shared(layer.weight.grad.data_ptr()) for layer in model]


@ranks(2, 3)
def test_gradients_are_born_in_shared_memory_and_steps_are_the_same():
    model, other = make_model(), make_model()
    optimizer, private = wrap(model), wrap(other, "private.", gradients_in_arena=False)
    for step in range(5):
        for m, o in ((model, optimizer), (other, private)):
            o.zero_grad()
            backward(m, step)
            assert not window.is_open
        assert shared(model)[:-1] == [True] * 3  # the last layer's came before the first hook
        assert not any(shared(other))
        optimizer.step()
        private.step()
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p, q)


@ranks(1)
def test_a_rank_alone_lends_nothing():
    model = make_model()
    optimizer = wrap(model)
    backward(model, 0)
    optimizer.step()
    assert not any(shared(model))


@ranks(2)
def test_a_steady_step_needs_no_new_memory():
    gc.collect()  # models of other tests, whose memory would do as well
    model = make_model()
    optimizer = wrap(model)
    places = set()
    for step in range(6):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        if step > 0:
            places |= {layer.weight.grad.data_ptr() for layer in model[:-1]}
    assert len(places) <= 4


@ranks(2)
def test_every_way_to_clear_and_to_accumulate():
    model, other = make_model(), make_model()
    optimizer = wrap(model, backward_passes_per_step=2)
    private = wrap(other, "private.", backward_passes_per_step=2, gradients_in_arena=False)

    def by_hand(m):
        for p in m.parameters():
            p.grad = None

    for step, clear in enumerate(
        [
            lambda m, o: o.zero_grad(),
            lambda m, o: o.zero_grad(set_to_none=False),
            lambda m, o: by_hand(m),
            lambda m, o: m.zero_grad(),
        ]
        * 2
    ):
        for m, o in ((model, optimizer), (other, private)):
            clear(m, o)
            with o.no_sync():
                backward(m, 3 * step)
            backward(m, 3 * step + 1)
            backward(m, 3 * step + 2)
            o.clip_grad_norm_(0.1)
            o.step()
        for p, q in zip(model.parameters(), other.parameters()):
            assert torch.equal(p, q), step


@ranks(2)
def test_a_gradient_that_the_script_keeps_is_not_overwritten():
    model = make_model()
    optimizer = wrap(model)
    backward(model, 0)
    optimizer.step()
    kept = [layer.weight.grad for layer in model]
    values = [g.clone() for g in kept]
    for step in range(1, 4):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    for g, value in zip(kept, values):
        assert torch.equal(g, value)


@ranks(2)
def test_they_are_ordinary_tensors():
    model = make_model()
    optimizer = wrap(model)
    backward(model, 0)
    optimizer.synchronize()
    gradient = model[0].weight.grad
    value = gradient.clone()
    assert is_shared(gradient.data_ptr())
    for copied in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient))):
        assert torch.equal(copied, value)
    file = io.BytesIO()
    torch.save(gradient, file)
    assert file.tell() < value.numel() * 4 + 4096
    gradient.resize_(WIDTH, WIDTH + 1)  # its storage grows
    assert torch.equal(gradient.flatten()[: value.numel()], value.flatten())
    assert not is_shared(gradient.data_ptr())
    other = model[1].weight.grad
    value = other.clone()
    other.share_memory_()
    assert torch.equal(other, value)
    optimizer.zero_grad()


def heap_mebibytes():
    """In use now, as an error says it."""
    error, memory = _ffi.Error(), ctypes.c_void_p()
    _ffi.library.rueda_alloc(runtime.require_context(), 1 << 60, ctypes.byref(memory), ctypes.byref(error))
    return int(re.search(r"; (\d+) MiB of this process's heap", error.message.decode()).group(1))


@ranks(2)
def test_a_dropped_model_gives_its_memory_back_and_what_is_kept_stays():
    gc.collect()
    before = heap_mebibytes()
    model = make_model(width=1024)
    optimizer = wrap(model)
    model(torch.ones(1, 1024)).mean().backward()
    optimizer.step()
    assert heap_mebibytes() == before + 12
    kept = model[0].weight.grad
    value = kept.clone()
    del model, optimizer
    gc.collect()
    assert torch.equal(kept, value)
    assert heap_mebibytes() == before + 4
    del kept
    gc.collect()
    assert heap_mebibytes() == before


@ranks(2)
def test_forked_children_read_and_write_without_being_seen():
    model = make_model()
    optimizer = wrap(model)
    backward(model, 0)
    optimizer.synchronize()
    values = [layer.weight.grad.clone() for layer in model]
    child = os.fork()
    if child == 0:
        try:
            right = all(torch.equal(layer.weight.grad, value) for layer, value in zip(model, values))
            for layer in model:
                layer.weight.grad.fill_(7)
            grown = torch.ones(WIDTH, WIDTH, requires_grad=True)
            (grown * 2).sum().backward()  # allocates a block's size in the child
            model.zero_grad()
            gc.collect()
            os._exit(0 if right and not is_shared(grown.grad.data_ptr()) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for layer, value in zip(model, values):
        assert torch.equal(layer.weight.grad, value)
    with optimizer.skip_synchronize():
        optimizer.step()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        torch.ones(WIDTH, WIDTH).sum()  # of a gradient's size
        return torch.full((WIDTH,), float(index))


@ranks(2)
def test_workers_of_a_loader_are_forked_while_gradients_are_there():
    model, other = make_model(), make_model()
    for m, options in ((model, {}), (other, {"prefix": "private.", "gradients_in_arena": False})):
        optimizer = wrap(m, **options)
        for _ in range(2):
            for x in torch.utils.data.DataLoader(Numbers(), 4, num_workers=2):
                optimizer.zero_grad()
                m(x).mean().backward()
                optimizer.step()
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p, q)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("backward failed")


@ranks(2)
def test_a_backward_that_fails_leaves_the_next_one_right():
    model, other = make_model(), make_model()
    optimizer, private = wrap(model), wrap(other, "private.", gradients_in_arena=False)
    for m, o in ((model, optimizer), (other, private)):
        with o.no_sync(), raises(RuntimeError, "backward failed"):
            first = Fails.apply(m[0](batch(0)))
            m[1:](first).mean().backward()
        m.zero_grad()
        for step in range(2):
            o.zero_grad()
            backward(m, step)
            o.step()
        assert not window.is_open
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p, q)


@ranks(2)
def test_graphs_of_gradients_and_checkpoints_within_backward():
    model, other = make_model(), make_model()
    for m, options in ((model, {}), (other, {"prefix": "private.", "gradients_in_arena": False})):
        optimizer = wrap(m, **options)
        for step in range(3):
            optimizer.zero_grad()
            x = batch(step).requires_grad_()
            for reentrant in (True, False):
                x = torch.utils.checkpoint.checkpoint(m[:2], x, use_reentrant=reentrant) * 0.5
            with optimizer.no_sync():
                x.square().mean().backward()
            backward(m, step, create_graph=step == 1)
            optimizer.step()
            for p in m.parameters():
                p.grad = None
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p, q)


@ranks(2)
def test_two_optimizers_and_two_threads():
    models = [make_model(), make_model()]
    optimizers = [wrap(models[0], "one."), wrap(models[1], "other.")]
    for step in range(3):
        for o in optimizers:
            o.zero_grad()
        threads = [threading.Thread(target=backward, args=(m, step)) for m in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for o in optimizers:
            o.step()
    for p, q in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(p, q)


def in_a_small_heap():
    model, other = make_model(12), make_model(12)
    optimizer, private = wrap(model), wrap(other, "private.", gradients_in_arena=False)
    for step in range(3):
        for m, o in ((model, optimizer), (other, private)):
            o.zero_grad()
            backward(m, step)
            o.step()
    assert sorted(set(shared(model))) == [False, True]
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p, q)


def test_a_heap_that_is_too_small_leaves_gradients_private():
    results(run_ranks(2, in_a_small_heap, env={"RUEDA_HEAP_BYTES": str(1 << 20)}))


def test_where_pytorch_cannot_be_answered_nothing_is_lent():
    assert not _lent_memory.is_possible()  # this process has no shared memory
