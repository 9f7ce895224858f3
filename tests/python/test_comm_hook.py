"""Communication hooks of a DistributedOptimizer: DDP's, PyTorch's own, and those written with rueda alone."""

import gc
import weakref

import rueda.torch as hvd
import torch
from c10d_cases import default_group
from c10d_training import make, parameters
from expect import eventually, raises
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from worlds import ranks, run_ranks

WORLD = "torch"
SMALL = 0.001  # MiB: every layer has a bucket of its own, or two


class Model(torch.nn.Module):
    """Several types, shapes, strides; a layer that may be left out, one that is tied, one that is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.image = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.first = torch.nn.Linear(20, 30)
        self.tied = self.first
        self.frozen = torch.nn.Linear(30, 30).requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.last = torch.nn.Linear(30, 3)

    def forward(self, x, short=False):
        x = torch.tanh(self.tied(self.image(x).flatten(1)))
        x = self.frozen(x) * self.scale.float()
        return x if short else self.last(x)


def batch(step):
    return torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(100 * step + hvd.rank()))


def backward(model, step, **arguments):
    model(batch(step), **arguments).square().mean().backward()


def wrap(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def average(state, bucket):
    handle = hvd.allreduce_async_(bucket.buffer(), name=f"bucket.{bucket.index()}")
    return hvd.get_future(handle)


def check_alike(model, other):
    for (name, p), q in zip(model.named_parameters(), other.named_parameters()):
        assert torch.equal(p, q[1]), name


@ranks(1, 2, 3)
def test_a_hook_that_averages_gives_the_same_bits():
    whole, model = Model(), Model()
    plain, optimizer = wrap(whole), wrap(model)
    seen = []

    def hook(state, bucket):
        assert state == "mine"
        views, flat = bucket.gradients(), bucket.buffer()
        assert [view.shape for view in views] == [p.shape for p in bucket.parameters()]
        assert sum(view.numel() for view in views) == flat.numel() and flat.dim() == 1
        assert all(torch.equal(view, p.grad) for view, p in zip(views, bucket.parameters()))
        seen.append((bucket.index(), bucket.is_last()))
        return average(state, bucket)

    hvd.register_comm_hook(optimizer, "mine", hook, bucket_cap_mb=SMALL)
    for step in range(4):
        for each, its in ((whole, plain), (model, optimizer)):
            its.zero_grad()
            backward(each, step, short=step == 2 and 0 == hvd.rank() < hvd.size() - 1)
            its.step()
        check_alike(model, whole)
    count = len(seen) // 4
    assert count >= 3 and seen == [(i, i == count - 1) for i in range(count)] * 4


@ranks(1, 2, 3)
def test_pytorchs_own_hooks_give_what_ddp_gives_with_them():
    with default_group() as group:
        for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
            for state in (None, group):
                whole, model = make(), make()
                reference = DistributedDataParallel(whole)
                reference.register_comm_hook(state, hook)
                plain = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
                optimizer = wrap(model)
                hvd.register_comm_hook(optimizer, state, hook)
                for step in range(3):
                    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
                    for each, its in ((reference, plain), (model, optimizer)):
                        its.zero_grad()
                        each(x).square().mean().backward()
                        its.step()
                assert torch.equal(parameters(model), parameters(whole)), hook.__name__


@ranks(2)
def test_a_hook_with_a_memory_and_callbacks_that_start_collectives():
    """PowerSGD waits for futures in its callbacks and looks at the shapes of gradients."""
    with default_group() as group:
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 40))
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.register_comm_hook(optimizer, state, powerSGD_hook.powerSGD_hook)
        losses = []
        for _ in range(40):
            optimizer.zero_grad()
            loss = (model(torch.eye(40)) - 0.1).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 10, losses
        assert state.iter > 2 and state.total_numel_after_compression > 0, state.iter
        hvd.check_replicas(model)


@ranks(1, 2)
def test_callbacks_set_buffer_and_a_list_as_value():
    whole, model = Model(), Model()
    plain, optimizer = wrap(whole), wrap(model)

    def hook(state, bucket):
        bucket.set_buffer(bucket.buffer() * 2)
        first = hvd.get_future(hvd.allreduce_async(bucket.buffer(), name=f"a.{bucket.index()}"))

        def again(future):
            name = f"b.{bucket.index()}"
            return hvd.synchronize(hvd.allreduce_async(future.value() / 2, name=name))

        return first.then(again).then(lambda future: [future.value().reshape(1, -1)])

    hvd.register_comm_hook(optimizer, hook)
    for step in range(2):
        for each, its in ((whole, plain), (model, optimizer)):
            its.zero_grad()
            backward(each, step)
            its.step()
    for p, q in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(p, q)


@ranks(2)
def test_accumulation_clipping_scaling_and_gradients_that_are_thrown_away():
    whole, model = Model(), Model()
    options = {"backward_passes_per_step": 2}
    runs = (whole, wrap(whole, **options)), (model, wrap(model, **options))
    calls = []
    hvd.register_comm_hook(runs[1][1], lambda s, b: calls.append(b.index()) or average(s, b), bucket_cap_mb=SMALL)
    for each, optimizer in runs:
        for step in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                backward(each, step)
            backward(each, step + 10)
            backward(each, step + 20, short=step == 1)
            optimizer.clip_grad_norm_(0.5)
            optimizer.step()
    for p, q in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
    assert len(calls) == 3 * len(set(calls))

    whole, model = Model(), Model()
    runs = (whole, wrap(whole)), (model, wrap(model))
    hvd.register_comm_hook(runs[1][1], None, average, bucket_cap_mb=SMALL)
    for each, optimizer in runs:
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(3):
            optimizer.zero_grad()
            backward(each, step)
            each.zero_grad()  # of another loss: these gradients are thrown away
            loss = each(batch(step)).square().mean()
            if step == 1 and hvd.rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 128.0
    check_alike(model, whole)


@ranks(2)
def test_parameters_that_come_later_and_sparse_gradients():
    whole, model = Model(), Model()
    more, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(more.state_dict())
    hvd.broadcast_parameters(more.state_dict(), 0)
    hvd.broadcast_parameters(other.state_dict(), 0)
    runs = (whole, more, wrap(whole)), (model, other, wrap(model))
    hvd.register_comm_hook(runs[1][2], average)
    for each, added, optimizer in runs:
        for step in range(3):
            optimizer.zero_grad()
            added(each(batch(step))).square().mean().backward()
            optimizer.step()
            if step == 0:
                optimizer.add_param_group({"params": added.parameters(), "lr": 0.2})
    check_alike(model, whole)
    check_alike(other, more)

    tables = [torch.nn.Embedding(5, 3, sparse=True) for _ in range(3)]
    for table in tables:
        with torch.no_grad():
            table.weight.fill_(1.0)
    plain, optimizer, refused = (
        hvd.DistributedOptimizer(torch.optim.SGD(t.parameters(), lr=1.0), t.named_parameters(), sparse_as_dense=dense)
        for t, dense in zip(tables, (True, True, False))
    )
    hvd.register_comm_hook(optimizer, average)
    hvd.register_comm_hook(refused, average)
    for table, its in zip(tables, (plain, optimizer)):
        table(torch.tensor([hvd.rank()])).sum().backward()
        its.step()
    assert torch.equal(tables[0].weight, tables[1].weight)
    with raises(ValueError, "weight", "sparse_as_dense=True"):
        tables[2](torch.tensor([0])).sum().backward()


@ranks(1, 2)
def test_what_a_hook_cannot_go_with_is_refused_by_name():
    model = Model()
    for options, name in (
        ({"compression": hvd.Compression.fp16}, "compression"),
        ({"op": hvd.Sum}, "op"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"gradients_in_arena": True}, "gradients_in_arena"),
    ):
        with raises(ValueError, name):
            hvd.register_comm_hook(wrap(model, **options), average)
    if hvd.size() > 1:
        with raises(ValueError, "groups"):
            hvd.register_comm_hook(wrap(model, groups=2), average)
    with raises(TypeError, "shard="):
        hvd.register_comm_hook(wrap(torch.nn.Linear(3, 3), shard="state"), average)
    with raises(TypeError, "DistributedOptimizer"):
        hvd.register_comm_hook(torch.optim.SGD(model.parameters(), lr=1.0), average)
    with raises(TypeError, "callable"):
        hvd.register_comm_hook(wrap(model), "state", "no function")
    with raises(ValueError, "bucket_cap_mb"):
        hvd.register_comm_hook(wrap(model), average, bucket_cap_mb=0)
    optimizer = wrap(model)
    hvd.register_comm_hook(optimizer, average)
    with raises(RuntimeError, "already"):
        hvd.register_comm_hook(optimizer, average)


@ranks(2)
def test_errors_of_a_hook_are_named_on_its_rank():
    def broken(state, bucket):
        if state == "raises":
            raise KeyError("nothing there")
        if state == "no future":
            return bucket.buffer()
        future = hvd.get_future(hvd.allreduce_async(bucket.buffer(), name="b"))
        if state == "callback":
            return future.then(lambda _: 1 // 0)
        return future.then(lambda f: f.value()[1:])

    for state, kind, *fragments in (
        ("raises", RuntimeError, "broken", "bucket 0", "weight", f"rank {hvd.rank()}", "KeyError: 'nothing there'"),
        ("no future", TypeError, "broken", "Tensor instead of a torch.futures.Future"),
        ("callback", RuntimeError, "broken", "ZeroDivisionError"),
        ("short", ValueError, "broken", "the bucket has 12 elements, this is 11 elements"),
    ):
        model = torch.nn.Linear(3, 4, bias=False)
        optimizer = wrap(model)
        hvd.register_comm_hook(optimizer, state, broken)
        with raises(kind, *fragments):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()


@ranks(2)
def test_futures_of_handles():
    rank = hvd.rank()
    future = hvd.get_future(hvd.allgather_async(torch.tensor([rank])))
    done = []
    future.then(lambda f: done.append(f.value().tolist()))
    eventually(lambda: done)  # nobody waits: a thread completes it
    assert done == [[0, 1]] and future.done()
    for step in range(3):  # of the same name again: as a steady operation
        future = hvd.get_future(hvd.allreduce_async(torch.full((2,), 1.0 + rank), name="again", op=hvd.Sum))
        assert future.wait().tolist() == [3.0, 3.0]
    output, splits = hvd.get_future(hvd.alltoall_async(torch.tensor([0, 1]))).wait()
    assert output.tolist() == [rank, rank] and splits.tolist() == [1, 1]
    wrong = hvd.get_future(hvd.allreduce_async(torch.ones(2 + rank), name="wrong"))
    with raises(hvd.HorovodInternalError, "wrong"):
        wrong.then(lambda f: f.value()).wait()
    with raises(ValueError, "Handle"):
        hvd.get_future(hvd.allreduce_async(torch.ones(1)) + 1000)


@ranks(2)
def test_nothing_is_kept_alive():
    model = Model()
    optimizer = wrap(model)
    hvd.register_comm_hook(optimizer, average)
    backward(model, 0)
    optimizer.step()
    kept = [weakref.ref(optimizer), *map(weakref.ref, model.parameters())]
    del model, optimizer
    gc.collect()
    assert not any(each() is not None for each in kept)


def one_hook_fails():
    model = Model()
    optimizer = wrap(model)

    def hook(state, bucket):
        if hvd.rank() == 1 and bucket.index() == 1:
            raise OSError("no such file")
        return average(state, bucket)

    hvd.register_comm_hook(optimizer, None, hook, bucket_cap_mb=SMALL)
    try:
        backward(model, 0)
        optimizer.step()
    except RuntimeError as error:
        return str(error)


def test_other_ranks_are_told_who_did_not_come():
    outcome = run_ranks(3, one_hook_fails)
    texts = [next(iter(report.values())).get("result", "") for report in outcome.reports]
    assert "hook" in texts[1] and "OSError: no such file" in texts[1] and "rank 1" in texts[1], outcome
    for rank in (0, 2):
        assert "rank 1" in texts[rank] and "hook" not in texts[rank], outcome
