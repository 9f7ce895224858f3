"""On an older PyTorch: what 1.13 lacks is taken away from this one while rueda is imported."""

import sys

from worlds import launch

PROGRAM = """
import torch

hidden = []
for owner, names in (
    (torch, [n for n in dir(torch) if n.startswith(("float8_", "uint16", "uint32", "uint64"))]),
    (torch, ["compiler"]),
    (torch.library, ["register_autograd"]),
    (torch._C, ["_current_graph_task_id"]),
    (torch._C._autograd, ["_unsafe_set_version_counter"]),
):
    for name in names:
        if hasattr(owner, name):
            hidden.append((owner, name, getattr(owner, name)))
            delattr(owner, name)

import rueda.torch as hvd

for each in hidden:  # PyTorch itself needs them
    setattr(*each)
if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
    del torch.Tensor.register_post_accumulate_grad_hook

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((1, 3), 1.0 + hvd.rank() + step)).sum().backward()
    optimizer.step()
    hvd.check_replicas(model)
    assert torch.equal(model.weight.grad, torch.full((2, 3), 1.5 + step)), model.weight.grad
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard="parameters", module=model, units=0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((1, 3), 1.0 + hvd.rank() + step)).sum().backward()
    optimizer.step()
with hvd.gathered(model):
    hvd.check_replicas(model)
    assert torch.isfinite(model[0].weight).all()
for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.bool):
    assert hvd.allgather(torch.ones(2, dtype=dtype)).dtype is dtype
"""


def test_a_training_on_a_pytorch_without_what_came_after_1_13(tmp_path):
    program = tmp_path / "old.py"
    program.write_text(PROGRAM)
    code, output = launch(2, [sys.executable, program])
    assert code == 0, output
