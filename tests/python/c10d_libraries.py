"""``c10d_libraries.py LIBRARY BACKEND``: a short training by a library, on one of two ranks of torchrun.

Rank 0 writes a JSON line: the backend that the library has used, and its losses. The lines about each library in
docs/torch_distributed.md are those that are used here. BACKEND ``none``: nothing is said, as in a script for Gloo.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist

BATCH = 8


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def samples():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())


def loader():
    return torch.utils.data.DataLoader(samples(), batch_size=BATCH)


def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def with_accelerate(backend):
    from accelerate import Accelerator

    if backend != "none":
        dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer, data = accelerator.prepare(
        model, torch.optim.Adam(model.parameters(), lr=1e-2), loader()
    )
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses += accelerator.gather_for_metrics(loss.detach()).tolist()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    accelerator.wait_for_everyone()
    return losses


def with_lightning(backend):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            loss = loss_of(self.network, *batch)
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, batch, _):
            self.log("validation", loss_of(self.network, *batch), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader(), loader())
    return [trainer.callback_metrics[name].item() for name in ("loss", "validation")]


def with_transformers(backend):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    if backend != "none":
        dist.init_process_group(backend)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    tokens = torch.randint(0, 32, (32, 16), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=4,
            num_train_epochs=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=data,
        eval_dataset=data,
    )
    return [trainer.train().training_loss, trainer.evaluate()["eval_loss"]]


def with_deepspeed(backend):
    import deepspeed

    deepspeed.init_distributed(backend)
    losses = []
    for stage in range(4):
        model = network()
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=model.parameters(),
            config={
                "train_micro_batch_size_per_gpu": BATCH // 2,
                "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
                "zero_optimization": {"stage": stage},
            },
        )
        for x, y in loader():
            mine = slice(dist.get_rank(), None, 2)
            loss = loss_of(engine, x[mine], y[mine])
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def with_deepspeed_engine(backend):
    """The same configurations by DeepSpeed's engine over Gloo, and by rueda's."""
    if backend == "rueda":
        import rueda.torch as library

        def rank():
            return library.rank()
    else:
        import deepspeed as library

        library.init_distributed(backend)
        rank = dist.get_rank
    losses = []
    for optimizer in (
        {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}},
        {"type": "Adam", "params": {"lr": 0.02, "torch_adam": True, "weight_decay": 0.1}},
    ):
        for stage in (0, 1, 2):
            for precision in ({}, {"bf16": {"enabled": True}}):  # it has no fp16 on CPUs
                model = network()
                engine, *_ = library.initialize(
                    model=model,
                    model_parameters=model.parameters(),
                    config={
                        "train_micro_batch_size_per_gpu": BATCH // 2,
                        "gradient_accumulation_steps": 2,
                        "gradient_clipping": 0.3,
                        "optimizer": optimizer,
                        "scheduler": {
                            "type": "WarmupDecayLR",
                            "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 3, "total_num_steps": 12},
                        },
                        "zero_optimization": {"stage": stage},
                        "zero_allow_untested_optimizer": True,
                        **precision,
                    },
                )
                dtype = torch.bfloat16 if precision else torch.float32
                for x, y in [*loader(), *loader()]:
                    mine = slice(rank(), None, 2)
                    loss = torch.nn.functional.cross_entropy(engine(x[mine].to(dtype)).float(), y[mine])
                    engine.backward(loss)
                    engine.step()
                    losses.append(loss.item())
    return (backend, losses)


def with_torchft(backend):
    """Two replicas of one process each, whose group is made anew in the middle."""
    from torchft import process_group as parts

    class ProcessGroupRueda(parts.ProcessGroupWrapper):
        def _create_pg(self, store, rank, world_size):
            from rueda.torch.distributed import from_store

            return from_store(store, rank, world_size, self._timeout)

        def getBackendName(self):
            return "torchft-rueda"

    dist.init_process_group("gloo")  # what the lighthouse of torchft is for: everybody's handle
    group = ProcessGroupRueda() if backend == "rueda" else parts.ProcessGroupGloo()
    group.set_rank_info(f"replica {dist.get_rank()}", 0, 1)
    handles = [None, None]
    dist.all_gather_object(handles, group.get_reconfigure_handle())
    model, losses = network(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for uuid in (1, 2):
        group.reconfigure(parts.ReconfigureOptions(uuid=uuid, handles=handles))
        for x, y in loader():
            mine = slice(dist.get_rank(), None, 2)
            optimizer.zero_grad()
            loss = loss_of(model, x[mine], y[mine])
            loss.backward()
            works = [
                group.allreduce([parameter.grad], dist.AllreduceOptions())
                for parameter in model.parameters()
            ]
            for work in works:
                work.wait()
            optimizer.step()
            losses.append(loss.item())
    group.shutdown()
    return group.getBackendName().removeprefix("torchft-"), losses


def main(library, backend):
    result = globals()["with_" + library](backend)
    used, losses = result if isinstance(result, tuple) else (dist.get_backend(), result)
    if int(os.environ["RANK"]) == 0:
        print("\n" + json.dumps({"backend": used, "losses": losses}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
