"""What quick_start/sitecustomize.py changes of PyTorch: when its compiler is loaded, and nothing else."""

import os
import pathlib
import subprocess
import sys

QUICK = str(pathlib.Path(__file__).resolve().parent / "quick_start")

PROGRAM = """
import sys
import torch

torch.manual_seed(1)
model = torch.nn.Linear(3, 2)
optimizers = [kind(model.parameters(), lr=0.1) for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)]


def step():
    for optimizer in optimizers:
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert torch.is_grad_enabled()


step()
print("torch._dynamo" in sys.modules)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist())
step()
print("torch._dynamo" in sys.modules, [p.tolist() for p in model.parameters()], torch.optim.SGD.step.__name__)
"""


def said(*path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_steps_are_the_same_and_the_compiler_is_loaded_when_it_compiles():
    quick, plain = said(QUICK), said()
    assert quick[0] == "False"
    assert quick[1:] == plain[1:] and plain[2].startswith("True [[")
