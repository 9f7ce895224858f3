"""A model that no rank has room for is made, trained and evaluated; one that all of them have no room for is refused."""

import sys

from worlds import launch

PROGRAM = """
import resource
import torch
import rueda.torch as hvd

LAYERS, WIDTH, MIB = 12, 2000, 1 << 20  # 183 MiB of parameters; with gradients and Adam's state 732


def make(count):
    with hvd.no_init():
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]
        model = torch.nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def wrap(model, optimizer):
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard="parameters", module=model)


hvd.init()
torch.set_num_threads(1)
torch.manual_seed(hvd.rank())
warm, optimizer = make(1)
optimizer = wrap(warm, optimizer)  # what that starts and maps: not counted
warm(torch.ones(1, WIDTH)).sum().backward()
optimizer.step()
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + 290 * MIB, resource.RLIM_INFINITY))
model, optimizer = make(100 * LAYERS)
try:
    wrap(model, optimizer)
except MemoryError as error:
    print(f"rank {hvd.rank()}: {error}")
model, optimizer = make(LAYERS)
optimizer = wrap(model, optimizer)
x = torch.ones(2, WIDTH)
losses = []
for step in range(3):
    optimizer.zero_grad()
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[2] < losses[1] < losses[0], losses
try:
    torch.ones(320 * MIB, dtype=torch.uint8)
except RuntimeError:
    print("the limit holds")
print("trained", losses)
"""


def test_a_model_larger_than_the_memory_of_a_rank(tmp_path):
    program = tmp_path / "larger.py"
    program.write_text(PROGRAM)
    heap = {"RUEDA_HEAP_BYTES": str(290 << 20)}  # beside the limit: 580 MiB altogether
    code, output = launch(2, [sys.executable, program], {**heap, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"})
    assert code == 0 and output.count("trained") == 2 and output.count("the limit holds") == 2, output
    assert "9155 MiB for parameters, 9155 MiB for gradients and 18311 MiB for the optimizer's state" in output, output
    assert 'shard="parameters", state_dtype="int8": 9155 MiB + 9155 MiB + ' in output, output
