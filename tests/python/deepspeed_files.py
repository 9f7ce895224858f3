"""Checkpoints in the form of DeepSpeed's ZeRO 0.19, made of a plain optimizer without DeepSpeed.

As a program: python -m torch.distributed.run --nproc-per-node 2 deepspeed_files.py FOLDER trains with DeepSpeed itself
and saves FOLDER/STAGE of each stage, and FOLDER/plain.pt, the same training without it.
"""

import enum
import os
import sys
import types

import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first = torch.nn.Linear(20, 13)
        self.frozen = torch.nn.Linear(13, 13)
        self.last = torch.nn.Linear(13, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        return self.last(self.frozen(torch.tanh(self.first(x))))

    def groups(self):
        return [
            {"params": [self.first.weight, self.last.weight], "weight_decay": 0.1},
            {"params": [self.first.bias, self.last.bias], "lr": 0.05, "weight_decay": 0.0},
        ]


def data(step, rank):
    return torch.randn(4, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def trained(ranks=2, steps=3):
    """A model and its optimizer after steps with the mean of the ranks' gradients."""
    model = Network()
    optimizer = torch.optim.AdamW(model.groups(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            (model(data(step, rank)).square().mean() / ranks).backward()
        optimizer.step()
    return model, optimizer


def _classes():
    """Modules and classes of DeepSpeed that are in its files."""
    zero, scaler = types.ModuleType("deepspeed.runtime.zero.config"), types.ModuleType("deepspeed.runtime.fp16.loss_scaler")

    class ZeroStageEnum(int, enum.Enum):
        optimizer_states, gradients, weights = 1, 2, 3

    class LossScaler:
        def __init__(self):
            self.cur_scale = 1.0

    for module, kind in ((zero, ZeroStageEnum), (scaler, LossScaler)):
        kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
        setattr(module, kind.__name__, kind)
        sys.modules[module.__name__] = module
    parents = ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.fp16")
    sys.modules.update({name: types.ModuleType(name) for name in parents})
    return ZeroStageEnum, LossScaler, [*parents, zero.__name__, scaler.__name__]


def write(folder, stage, ranks, model, optimizer):
    """What DeepSpeed writes on so many ranks."""
    ZeroStageEnum, LossScaler, modules = _classes()
    names = {p: name for name, p in model.named_parameters()}
    groups = [group["params"] for group in optimizer.param_groups]
    state = optimizer.state_dict()
    parts = os.path.join(folder, "global_step3")
    os.makedirs(parts)
    with open(os.path.join(folder, "latest"), "w") as file:
        file.write("global_step3")

    def flats(rank, values, group):
        """A rank's part of a group."""
        flat = [values(p).detach().reshape(-1) for p in group]
        if stage == 3:
            each = [-(-one.numel() // ranks) for one in flat]
            padded = [torch.cat([one, torch.zeros(n * ranks - one.numel())]) for one, n in zip(flat, each)]
            return torch.cat([one[rank * n : (rank + 1) * n] for one, n in zip(padded, each)])
        flat = torch.cat(flat)
        size = -(-flat.numel() // (2 * ranks)) * 2
        return flat[rank * size : (rank + 1) * size].clone()

    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    for rank in range(ranks):
        whole = {
            "module": {name: value if stage < 3 or name == "count" else torch.empty(0) for name, value in model.state_dict().items()},
            "buffer_names": ["count"],
            "optimizer": None if stage else state,
            "param_shapes": [{names[p]: p.shape for p in group} for group in groups] if stage else None,
            "frozen_param_shapes": {name: p.shape for name, p in frozen.items()} if stage else None,
            "shared_params": {},
            "frozen_param_fragments": {
                name: flats(rank, lambda p: p, [p]) if stage == 3 else p.detach() for name, p in frozen.items()
            }
            if stage
            else None,
            "ds_version": "0.19.8",
        }
        if stage == 3 or rank == 0:
            prefix = f"zero_pp_rank_{rank}_" if stage == 3 else ""
            torch.save(whole, os.path.join(parts, f"{prefix}mp_rank_00_model_states.pt"))
        if stage == 0:
            break
        base = {"state": {}, "param_groups": []}
        for n, group in enumerate(groups):
            options = {k: v for k, v in optimizer.param_groups[n].items() if k != "params"}
            base["param_groups"].append({**options, "params": [n]})
            keys = optimizer.state[group[0]]
            base["state"][n] = {
                key: value if value.dim() == 0 else flats(rank, lambda p, key=key: optimizer.state[p][key], group)
                for key, value in keys.items()
            }
        masters = [flats(rank, lambda p: p, group) for group in groups]
        own = {"zero_stage": ZeroStageEnum(stage), "loss_scaler": LossScaler()}
        if stage == 3:
            own.update(partition_count=ranks, optimizer_state_dict=base, fp32_flat_groups=masters)
        else:
            own.update(
                partition_count=[ranks] * len(groups),
                base_optimizer_state=base,
                single_partition_of_fp32_groups=masters,
                param_alignment_paddings=[[0] * len(group) for group in groups],
            )
        file = os.path.join(parts, f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        torch.save({"optimizer_state_dict": own, "ds_version": "0.19.8"}, file)
    for name in modules:
        del sys.modules[name]


def main(folder):
    import deepspeed
    import torch.distributed as dist

    deepspeed.init_distributed("gloo")
    for stage in range(4):
        model = Network()
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.groups(), lr=0.01),
            config={
                "train_micro_batch_size_per_gpu": 4,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
            },
        )
        for step in range(3):
            engine.backward(engine(data(step, dist.get_rank())).square().mean())
            engine.step()
        engine.save_checkpoint(os.path.join(folder, str(stage)))
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
