"""Optimizers of all kinds go on in the next epoch, with ranks that are left and with newcomers."""

import sys

import pytest
import rueda.torch as hvd
import torch
from rueda.torch.elastic._expected import expected_tensors
from worlds import launch, ranks

SCRIPT = """
import hashlib, os, signal, sys
import rueda.torch as hvd
import torch
from rueda._runtime import runtime
from rueda.torch import Compression

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(3)


def wrapped(layer, **options):
    optimizer = torch.optim.SGD(layer.parameters(), 0.01, momentum=0.5)
    return layer, hvd.DistributedOptimizer(optimizer, layer.named_parameters(), **options)


def linear():
    return torch.nn.Linear(48, 48)


made = {
    "plain": wrapped(linear()),
    "groups": wrapped(linear(), num_groups=1),
    "cast": wrapped(linear(), compression=Compression.fp16),
    "int8": wrapped(linear(), compression=Compression.int8),
    "topk": wrapped(linear(), compression=Compression.topk(0.1)),
    "powersgd": wrapped(linear(), compression=Compression.powersgd(2)),
    "adasum": wrapped(linear(), op=hvd.Adasum),
    "arena": wrapped(linear(), gradients_in_arena=True),
    "accumulated": wrapped(linear(), backward_passes_per_step=2),
    "sparse": wrapped(torch.nn.Embedding(10, 48, sparse=True)),
    "hooked": wrapped(linear()),
}


def hook(state, bucket):
    return hvd.get_future(hvd.allreduce_async_(bucket.buffer(), name=f"bucket.{bucket.index()}"))


hvd.register_comm_hook(made["hooked"][1], hook)
for layer, optimizer in made.values():
    optimizer.check_replicas(every=7)

# What has parts of its own is refused, by name.
for make, name in (
    (lambda layer: wrapped(layer, shard="state"), "shard='state'"),
    (lambda layer: hvd.LocalSGD(torch.optim.SGD(layer.parameters(), 0.1), every=4), "hvd.LocalSGD"),
):
    try:
        make(linear())
    except ValueError as error:
        assert str(error).startswith(name + " is not for elastic jobs"), error
    else:
        raise SystemExit("not refused: " + name)


def backward(layer, loss_of):
    if isinstance(layer, torch.nn.Embedding):
        loss_of(layer(torch.randint(10, (4,)))).backward()
    else:
        loss_of(layer(torch.randn(4, 48))).backward()


def die_at(step, place):
    if [runtime.epoch.member, step, place] == [1, 4, sys.argv[1]]:
        os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state):
    torch.manual_seed(100 * hvd.rank() + state.step)
    while state.step < 20 or state.size != int(sys.argv[2]):
        for number, (layer, optimizer) in enumerate(made.values()):
            optimizer.zero_grad()
            for _ in range(2 if layer is made["accumulated"][0] else 1):
                backward(layer, lambda value: value.square().mean())
            if number == 5:
                die_at(state.step, "between")
            optimizer.step()
        state.step, state.size = state.step + 1, hvd.size()
        state.commit()


state = hvd.elastic.TorchState(
    step=0, size=0,
    **{name: layer for name, (layer, _) in made.items()},
    **{name + "_optimizer": optimizer for name, (_, optimizer) in made.items()},
)
train(state)
digests = {
    name: hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in layer.parameters())).hexdigest()
    for name, (layer, _) in made.items()
}
for name, digest in digests.items():
    assert len(set(hvd.allgather_object(digest))) == 1, name
print("end", hvd.size(), flush=True)
hvd.shutdown()
"""


# With a replacement they go on with two ranks, too, until it comes.
@pytest.mark.parametrize("failure, size", [pytest.param("shrink", 2, marks=pytest.mark.slow), ("replace", 3)])
def test_optimizers_of_all_kinds_go_on(tmp_path, failure, size):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ("--min-np", "1", "--on-failure", failure)
    code, output = launch(3, [sys.executable, script, "between", size], options=options)
    assert code == 0 and output.count(f"end {size}") == size, output


KINDS = [
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.RMSprop, {}),
    (torch.optim.LBFGS, {}),
]


@pytest.mark.parametrize("kind, options", KINDS)
def test_what_an_optimizer_will_have_is_known_before_it_steps_and_nothing_is_changed(kind, options):
    layer = torch.nn.Linear(5, 3)
    optimizer = kind(layer.parameters(), lr=0.1, **options)
    before = [p.clone() for p in layer.parameters()]
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    hook = optimizer.register_step_pre_hook(lambda *_: pytest.fail("it has stepped"))
    expected = expected_tensors(optimizer)
    hook.remove()
    assert all(map(torch.equal, before, layer.parameters())) and not optimizer.state
    assert all(p.grad is None and any(p is each for each in optimizer.param_groups[0]["params"]) for p in layer.parameters())
    layer(torch.ones(5)).sum().backward()
    if kind is torch.optim.LBFGS:
        assert expected == []
        return
    optimizer.step()
    has = [each for state in optimizer.state_dict()["state"].values() for each in state.values() if isinstance(each, torch.Tensor)]
    assert [(each.shape, each.dtype, each.device) for each in expected] == [(each.shape, each.dtype, each.device) for each in has]


@ranks(2)
def test_a_newcomers_optimizer_has_its_memory_before_others_wait_for_it():
    layer = torch.nn.Linear(5, 3)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(layer.parameters(), lr=0.1), layer.named_parameters())
    layer(torch.ones(5)).sum().backward()
    optimizer.synchronize()
    if hvd.rank() == 0:
        with optimizer.skip_synchronize():
            optimizer.step()
    state = hvd.elastic.TorchState(layer, optimizer)
    state._prepare()
    handler = state._handlers["optimizer"]
    room = [each.data_ptr() for each in handler._room]
    spare = [each.data_ptr() for each in handler.copies._spare[0]]
    state.sync()
    moments = [each[name] for each in optimizer.state.values() for name in ("step", "exp_avg", "exp_avg_sq")]
    assert len(moments) == 6 and all(each.any() for each in moments)
    assert [each.data_ptr() for each in handler.copies._buffers] == spare
    assert room == ([each.data_ptr() for each in moments] if hvd.rank() == 1 else [])
