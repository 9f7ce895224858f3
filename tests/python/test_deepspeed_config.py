"""DeepSpeed's configuration: what is obeyed, what may stand there, what is refused by its path; the engine's steps."""

import collections
import json
import math
import os
import pickle

import pytest
import rueda.torch as hvd
import torch
from rueda.torch.deepspeed import ConfigError, _checkpoints
from rueda.torch.deepspeed._config import parse, read
from rueda.torch.deepspeed._loss_scale import DynamicScale, FixedScale
from rueda.torch.deepspeed._schedules import SCHEDULES
from worlds import launch, ranks

WORLD = "torch"
LEAST = {"train_micro_batch_size_per_gpu": 2}
ADAM = {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1}}


def refusal(config, size=2):
    with pytest.raises(ConfigError) as error:
        parse({**LEAST, **config}, size)
    return str(error.value)


# ---- the configuration ----


@pytest.mark.parametrize(
    "given, found",
    [
        ((32, None, None), (32, 16, 1)),
        ((None, 4, None), (8, 4, 1)),
        ((32, 4, None), (32, 4, 4)),
        ((32, None, 2), (32, 8, 2)),
        ((None, 4, 3), (24, 4, 3)),
        ((24, 4, 3), (24, 4, 3)),
        ((None, 4.0, 3), (24, 4, 3)),
    ],
)
def test_batch_sizes_follow_from_each_other(given, found):
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    config = parse({name: value for name, value in zip(names, given) if value is not None}, 2)
    assert config[:3] == found


@pytest.mark.parametrize(
    "config, text",
    [
        ({"train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": 2}, "is needed"),
        ({"train_batch_size": 33}, "33 is not train_micro_batch_size_per_gpu"),
        ({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 4}, "2 is not"),
        ({"train_batch_size": 0}, "train_batch_size: 0 is not a whole number"),
        ({"train_batch_size": "auto"}, "train_batch_size: 'auto' is filled in by transformers"),
        ({"train_batch_size": "8"}, "train_batch_size: '8' is not a number"),
        ({"train_batch_size": 8.5}, "train_batch_size: 8.5 is not a whole number"),
        ({"train_batch_size": True}, "train_batch_size: True is not"),
        ({"gradient_clipping": -1}, "gradient_clipping: -1 is not a number, 0 or more"),
        ({"gradient_clipping": float("nan")}, "gradient_clipping: nan"),
        ({"gradient_cliping": 1}, "gradient_cliping: there is no such key; did you mean gradient_clipping?"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: 4 is not a whole number from 0 to 3"),
        ({"zero_optimization": 2}, "zero_optimization: 2 is not a section"),
        ({"zero_optimization": {"overlap_com": True}}, "zero_optimization.overlap_com: there is no such key; did you mean zero_opt"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, "zero_optimization.reduce_bucket_size: 'auto'"),
        ({"zero_optimization": {"zero_quantized_weights": True}}, "zero_optimization.zero_quantized_weights: not obeyed"),
        ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "zero_optimization.zero_hpz_partition_size"),
        ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer.device: 'cpu' needs"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "offload_param.device: 'cpu' needs"),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}}}, "nvme_path: a folder is needed"),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "disk"}}}, 'there are null, "none", "cpu", "nvme"'),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, "offload_optimizer.ratio"),
        ({"zero_optimization": {"cpu_offload": True}}, "zero_optimization.cpu_offload: not obeyed by rueda: write offload_optim"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16.enabled and bf16.enabled are both true"),
        ({"fp16": {"enabled": "auto"}}, "fp16.enabled: 'auto' is filled in by transformers, which is not here; write true or false"),
        ({"fp16": {"enabled": True, "loss_scale": -1}}, "fp16.loss_scale: -1"),
        ({"fp16": {"enabled": True, "loss_scale_windows": 5}}, "fp16.loss_scale_windows: there is no such key; did you mean fp16.lo"),
        ({"optimizer": {"type": "Adam", "params": {"lr": "auto"}}}, "optimizer.params.lr: 'auto'"),
        ({"optimizer": {"params": {}}}, "optimizer.type: None is not a name"),
        ({"optimizer": {"type": "Adam", "parameters": {}}}, "optimizer.parameters: there is no such key; did you mean optimizer.params"),
        ({"scheduler": {"type": 5}}, "scheduler.type: 5"),
        ({"activation_checkpointing": {"partition_activations": True}}, "activation_checkpointing: not obeyed by rueda: use hvd.ch"),
        ({"wandb": {"enabled": True}}, "wandb: not obeyed"),
        ({"elasticity": {"max_train_batch_size": 5}}, "elasticity: not obeyed by rueda: use rueda.torch.elastic"),
        ({"gradient_allreduce_op": "sum", "prescale_gradients": True}, "'sum' excludes"),
        ({"communication_data_type": "fp16", "zero_optimization": {"stage": 1}}, "communication_data_type: 'fp16' is for stage 0"),
        ({"checkpoint": {"tag_validation": "Perhaps"}}, 'tag_validation: \'Perhaps\'; there are "Ignore", "Warn", "Fail"'),
        ({"steps_per_print": 0}, "steps_per_print: 0"),
    ],
)
def test_what_cannot_be_obeyed_is_named(config, text):
    assert text in refusal(config)


def test_sections_that_say_nothing_are_let_pass():
    config = {
        "wandb": {"enabled": False, "project": "x"},
        "amp": {"enabled": False},
        "flops_profiler": {"enabled": False},
        "activation_checkpointing": None,
        "zero_optimization": {"stage": 1, "offload_param": {"device": "none"}, "zero_quantized_weights": False, "offload_optimizer": None},
        "fp16": {"enabled": False, "loss_scale": 0},
        "bf16": {"enabled": False},
        "optimizer": None,
    }
    found = parse({**LEAST, **config}, 2)
    assert (found.stage, found.fp16, found.bf16, found.optimizer, found.ignored) == (1, None, False, None, {})


def test_keys_without_effect_are_listed():
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    found = parse({**LEAST, "zero_optimization": zero, "zero_allow_untested_optimizer": True}, 2)
    assert sorted(found.ignored) == [
        "zero_allow_untested_optimizer",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.overlap_comm",
        "zero_optimization.reduce_bucket_size",
    ]
    assert (found.stage, found.offload_optimizer) == (2, "cpu")


def test_files(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 4, "bf16": {"enabled": true}}')
    assert parse(read(str(path)), 1).bf16
    for text, said in (('{"a": 1, "a": 2}', "a stands there twice"), ("{", "is no JSON"), ("[]", "holds no JSON object")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read(path)
    with pytest.raises(ConfigError, match="the configuration is a list"):
        parse([], 1)


def test_every_key_is_on_the_page():
    from rueda.torch.deepspeed import _keys

    page = (os.path.join(os.path.dirname(__file__), "..", "..", "docs", "deepspeed.md"))
    text = open(page).read()
    for path in (*_keys.IGNORED, *_keys.REFUSED):
        name = path.split(".")[-1]
        assert f"`{name}`" in text or f"`{path}`" in text, path
    asked = ({"train_micro_batch_size_per_gpu": 1}, 1)
    from rueda.torch.deepspeed._config import _Keys

    seen = set()
    own, _Keys.get = _Keys.get, lambda self, path, default=None: (seen.add(path), own(self, path, default))[1]
    try:
        parse(*asked)
    finally:
        _Keys.get = own
    for path in seen:
        assert f"`{path.split('.')[-1]}`" in text or f"`{path}`" in text, path


# ---- schedules and scales ----


def schedule(kind, steps, lr=0.1, **params):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    made = SCHEDULES[kind](optimizer, **params)
    found = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        made.step()
        found.append(made.get_last_lr()[0])
        assert optimizer.param_groups[0]["lr"] == found[-1]
    return found, optimizer, made


def test_warmup():
    found, *_ = schedule("WarmupLR", 5, warmup_max_lr=0.4, warmup_num_steps=4, warmup_type="linear")
    assert found == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.4])
    found, *_ = schedule("WarmupLR", 6, warmup_min_lr=0.1, warmup_max_lr=0.2, warmup_num_steps=4)
    assert found == pytest.approx([0.1, *(0.1 + 0.1 * math.log(i) / math.log(4) for i in (1, 2, 3, 4)), 0.2, 0.2])
    found, *_ = schedule("WarmupLR", 3, lr=0.7, warmup_num_steps=2, warmup_type="linear")
    assert found == pytest.approx([0, 0, 0.35, 0.7])
    found, *_ = schedule(
        "WarmupDecayLR", 9, total_num_steps=6, warmup_max_lr=0.4, warmup_num_steps=2, warmup_type="linear"
    )
    assert found == pytest.approx([0, 0, 0.2, 0.4, 0.3, 0.2, 0.1, 0, 0, 0])
    found, *_ = schedule("WarmupCosineLR", 8, lr=1.0, total_num_steps=6, warmup_num_steps=2, warmup_type="linear", cos_min_ratio=0.1)
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * i / 4)) / 2 for i in (1, 2, 3, 4)]
    assert found == pytest.approx([0, 0, 0.5, *cosine, 0.1, 0.1])


def test_one_cycle_and_the_range_test():
    found, optimizer, made = schedule(
        "OneCycle", 8, cycle_min_lr=0.1, cycle_max_lr=0.5, cycle_first_step_size=2, cycle_second_step_size=4,
        decay_step_size=1, decay_lr_rate=0.5, cycle_min_mom=0.8, cycle_max_mom=0.9,
    )  # fmt: skip
    assert found == pytest.approx([0.1, 0.3, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1 / 1.5, 0.1 / 2])
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.9, 0.99))
    found, *_ = schedule("LRRangeTest", 4, lr_range_test_min_lr=0.1, lr_range_test_step_size=2, lr_range_test_step_rate=3)
    assert found == pytest.approx([0.1, 0.25, 0.4, 0.55, 0.7])
    found, *_ = schedule("LRRangeTest", 4, lr_range_test_min_lr=0.1, lr_range_test_step_size=2, lr_range_test_staircase=True)
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_goes_on_from_its_state(kind):
    params = {"WarmupDecayLR": {"total_num_steps": 30}, "WarmupCosineLR": {"total_num_steps": 30}}.get(kind, {})
    params = {"OneCycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 5}}.get(kind, params)
    whole, *_ = schedule(kind, 12, **params)
    _, optimizer, made = schedule(kind, 6, **params)
    _, fresh, again = schedule(kind, 0, **params)
    again.load_state_dict(pickle.loads(pickle.dumps(made.state_dict())))
    again.step()
    assert fresh.param_groups[0]["lr"] == whole[7]


def test_the_loss_scale_follows_overflows():
    scale = DynamicScale(16, window=2, hysteresis=2, consecutive_hysteresis=False, least=4)
    seen = []
    for overflow in (True, True, False, False, False, True, True, True):
        scale.update(overflow)
        seen.append(scale.scale)
    assert seen == [16, 8, 8, 8, 16, 16, 8, 4]
    with pytest.raises(RuntimeError, match="min_loss_scale"):
        scale.update(True)
    other = DynamicScale(1, 2, 2, False, 4)
    other.load_state_dict(scale.state_dict())
    assert vars(other) == vars(scale)


def test_the_configuration_decides_what_kind_of_loss_scale_there_is():
    fixed, dynamic = FixedScale(128), DynamicScale(16, 2, 2, False, 4)
    fixed.load_state_dict(DynamicScale(2, 2, 2, False, 1).state_dict())
    fixed.load_state_dict(FixedScale(2).state_dict())
    dynamic.load_state_dict(FixedScale(2).state_dict())
    assert (fixed.scale, dynamic.scale) == (128, 16)


class Note:
    """What is neither a tensor nor a plain value."""

    def __reduce__(self):
        return os.mkdir, ("made",)


def test_no_code_of_a_checkpoint_is_run_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "all" / "one"
    place.mkdir(parents=True)
    (tmp_path / "all" / "latest").write_text("one\n")
    schedule = {"milestones": collections.Counter([3, 3, 5])}  # as MultiStepLR has it
    state = {"rueda": 1, "module": {"w": torch.arange(3.0)}, "lr_scheduler": schedule, "client_state": {"epoch": (7, None)}}
    torch.save(state, place / _checkpoints.FILE)
    path, found = _checkpoints._read("all", None, True)
    assert path == os.path.join("all", "one") and torch.equal(found["module"].pop("w"), torch.arange(3.0))
    assert found == {**state, "module": {}}
    torch.save({"module": {}}, place / _checkpoints.FILE)
    with pytest.raises(ValueError, match="DeepSpeed's own"):
        _checkpoints._read("all", None, True)
    torch.save({**state, "client_state": {"note": Note()}}, place / _checkpoints.FILE)
    with pytest.raises(ValueError, match="mkdir, which could run any code.*weights_only=False"):
        _checkpoints._read("all", None, True)
    assert not (tmp_path / "made").exists()
    _checkpoints._read("all", "one", False)
    assert (tmp_path / "made").exists()
    for tag in ("../all/one", str(place)):
        (tmp_path / "all" / "latest").write_text(tag)
        with pytest.raises(ValueError, match="does not lie in that folder"):
            _checkpoints._read("all", None, True)


# ---- the engine ----


def network(width=16):
    torch.manual_seed(5 + hvd.rank())  # rank 0's is everybody's
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))


def samples(step, count=4):
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randn(count, 8, generator=generator), torch.randn(count, 3, generator=generator)


def loss_of(model, x, y, dtype=torch.float32):
    return torch.nn.functional.mse_loss(model(x.to(dtype)).float(), y)


def config_of(stage=0, **more):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": ADAM,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 4}},
        "zero_optimization": {"stage": stage},
        **more,
    }


def train(config, steps=4, dtype=torch.float32, engine=None, first=0):
    if engine is None:
        model = network()
        engine, optimizer, loader, scheduler = hvd.initialize(model=model, config=config)
        assert loader is None and engine.module is model and engine.optimizer is optimizer
    losses, boundaries = [], []
    for micro in range(first, first + 2 * steps):
        loss = loss_of(engine, *samples(micro), dtype)
        boundaries.append(engine.is_gradient_accumulation_boundary())
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    assert boundaries == [False, True] * steps
    return engine, losses, [p.detach().clone() for p in engine.module.parameters()]


def by_hand(steps=4):
    """What `config_of` means, in plain PyTorch, from the gradients of all ranks."""
    model = network()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for step in range(steps):
        lr = 0.02 * (math.log(step) / math.log(4) if 0 < step < 4 else float(step >= 4))
        for micro in (0, 1):
            loss = loss_of(model, *samples(2 * step + micro))
            (loss / 2).backward()
            losses.append(float(loss.detach()))
        for p in model.parameters():
            p.grad = hvd.allreduce(p.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
    return losses, list(model.parameters())


def close(some, others, tolerance):
    for one, other in zip(some, others):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other).detach(), rtol=tolerance, atol=tolerance)


@ranks(1, 2, 3)
def test_a_step_is_what_the_configuration_says_in_every_stage():
    expected = by_hand()
    for stage in (0, 1, 2, 3):
        engine, losses, parameters = train(config_of(stage))
        if stage == 3:
            parameters = [value.clone() for value in engine.module_state_dict().values()]
        close(losses, expected[0], 1e-5)
        close(parameters, expected[1], 1e-5)
        assert (engine.global_steps, engine.micro_steps, engine.skipped_steps) == (4, 8, 0)
        assert engine.global_samples == 4 * engine.train_batch_size() == 4 * 4 * 2 * hvd.size()
        assert engine.get_global_grad_norm() > 0 and engine.zero_optimization_stage() == stage
        assert set(engine.get_lr()) == {0.02}
        hvd.check_replicas(engine.module)


@ranks(2)
def test_fp16_and_bf16_train_close_to_float32():
    exact = train(config_of())[2]
    for section, dtype, tolerance in (("bf16", torch.bfloat16, 0.03), ("fp16", torch.float16, 0.02)):
        for stage in (0, 2):
            engine, losses, found = train(config_of(stage, **{section: {"enabled": True}}), dtype=dtype)
            close(found, exact, tolerance)
            assert engine.skipped_steps == 0 and all(p.dtype == torch.float32 for p in found)
            assert engine(samples(0)[0].to(dtype)).dtype == dtype
            assert engine.loss_scale == (65536 if section == "fp16" else 1)
            hvd.check_replicas(engine.module)


@ranks(2)
def test_an_overflow_on_one_rank_skips_the_step_on_all():
    for stage in (0, 1, 2):
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 1}},
            "zero_optimization": {"stage": stage},
            "fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1, "auto_cast": True},
        }
        engine, *_ = hvd.initialize(model=torch.nn.Linear(1000, 1, bias=False), config=config)
        before = engine.module.weight.detach().clone()
        x = torch.full((1, 1000), 1.0)
        for step, factor in enumerate((1.0, 6e4, 1.0)):
            engine.backward(engine(x).sum() * (factor if hvd.rank() == 1 else 1.0))
            engine.step()
            assert engine.was_step_applied() == (step != 1)
            hvd.check_replicas(engine.module)
        assert (engine.global_steps, engine.skipped_steps, engine.loss_scale) == (3, 1, 8)
        assert engine.lr_scheduler.last_batch_iteration == 1
        torch.testing.assert_close(engine.module.weight, before - 0.1 * 0 - (0.001 + 0.002), rtol=0, atol=1e-6)


@ranks(2)
def test_checkpointed_modules_and_tied_weights_in_16_bits():
    class Tied(torch.nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            torch.manual_seed(2)
            self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.BatchNorm1d(8))
            self.last = torch.nn.Linear(8, 8)
            self.last.weight = self.inner[0].weight
            if checkpointed:
                hvd.checkpoint(self.inner)

        def forward(self, x):
            return self.last(self.inner(x)).sin()

    found = []
    for checkpointed in (False, True):
        engine, *_ = hvd.initialize(
            model=Tied(checkpointed), config={**LEAST, "optimizer": ADAM, "bf16": {"enabled": True}}
        )
        for step in range(3):
            engine.backward(engine(samples(step)[0].bfloat16()).float().square().sum())
            engine.step()
        found.append([*engine.module.parameters(), *engine.module.buffers()])
        assert engine.module.last.weight is engine.module.inner[0].weight
    assert all(torch.equal(one, other) for one, other in zip(*found))


@ranks(2)
def test_recurrent_layers_compute_in_16_bits():
    for section in ("bf16", "fp16"):
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            dtype = torch.bfloat16 if section == "bf16" else torch.float16
            model = kind(8, 3, num_layers=2)
            engine, *_ = hvd.initialize(model=model, config={**LEAST, "optimizer": ADAM, section: {"enabled": True}})
            before = [p.detach().clone() for p in model.parameters()]
            result, _ = engine(samples(0)[0].to(dtype)[:, None])
            assert result.dtype == dtype
            engine.backward(result.float().square().sum())
            found = [(name, p.grad.dtype, bool(p.grad.any())) for name, p in model.named_parameters()]
            assert all(each[1:] == (torch.float32, True) for each in found), (kind, found)
            assert all(p is q for p, q in zip(model._flat_weights, model.parameters()))
            engine.step()
            if section == "bf16":
                assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before))


def folder_of_all():
    """A new folder that all ranks know."""
    import tempfile

    return hvd.broadcast_object(tempfile.mkdtemp(prefix="test-of-rueda-"), 0)


@ranks(1, 2)
def test_training_goes_on_from_a_checkpoint():
    for stage, more in ((0, {}), (2, {}), (1, {"fp16": {"enabled": True}})):
        config, dtype = config_of(stage, **more), torch.float16 if more else torch.float32
        folder = folder_of_all()
        _, _, expected = train(config, 6, dtype)
        engine, *_ = train(config, 3, dtype)
        engine.save_checkpoint(folder, client_state={"epoch": 7})
        assert open(os.path.join(folder, "latest")).read() == "global_step3"
        fresh, *_ = hvd.initialize(model=network(), config=config)
        path, client = fresh.load_checkpoint(folder)
        assert path == os.path.join(folder, "global_step3") and client == {"epoch": 7}
        assert (fresh.global_steps, fresh.micro_steps) == (3, 6)
        _, _, found = train(config, 3, dtype, fresh, first=6)
        assert all(torch.equal(one, other) for one, other in zip(found, expected))
        assert fresh.load_checkpoint(folder_of_all()) == (None, None)
        with pytest.raises(RuntimeError, match="rank 0 could not load a checkpoint"):
            fresh.load_checkpoint(folder, tag="other")
        with pytest.raises(RuntimeError, match="rank 0 could not save a checkpoint"):
            fresh.save_checkpoint("/proc/no/such/folder")


@ranks(1, 2)
def test_checkpoints_go_from_stage_to_stage():
    folder = folder_of_all()
    engine, *_ = train(config_of(0), 2)
    engine.save_checkpoint(folder)
    _, losses, _ = train(config_of(0), 2, engine=engine, first=4)
    for stage, offload in ((3, None), (1, "nvme"), (3, "nvme"), (2, "cpu"), (0, None)):
        zero = {"stage": stage}
        if offload:
            zero["offload_optimizer"] = {"device": offload, "nvme_path": folder}
        fresh, *_ = hvd.initialize(model=network(), config=config_of(stage, zero_optimization=zero))
        fresh.load_checkpoint(folder, "global_step2")
        _, found, _ = train(None, 2, engine=fresh, first=4)
        close(found, losses, 1e-5)
        fresh.save_checkpoint(folder, f"stage{stage}{offload}")
    again, *_ = hvd.initialize(model=network(), config=config_of(1))
    path, _ = again.load_checkpoint(folder)
    assert path.endswith("stage0None") and again.global_steps == 4
    for tag in ("stage3nvme", "stage3None", "stage1nvme"):
        other, *_ = hvd.initialize(model=network(), config=config_of(2))
        other.load_checkpoint(folder, tag)
        close(other.module.parameters(), again.module.parameters(), 1e-5)
        close([train(None, 1, engine=other, first=8)[1]], [train(None, 1, engine=again, first=8)[1]], 1e-5)
        again.load_checkpoint(folder)


@ranks(2)
def test_a_checkpoint_of_different_tags_is_told():
    engine, *_ = hvd.initialize(model=network(), config={**LEAST, "optimizer": ADAM, "checkpoint": {"tag_validation": "fail"}})
    with pytest.raises(ValueError, match="different tags: '0', '1'"):
        engine.save_checkpoint(folder_of_all(), tag=hvd.rank())


@ranks(2)
def test_clients_bring_their_own_optimizer_schedule_and_data():
    data = torch.utils.data.TensorDataset(torch.arange(80.0).reshape(10, 8))
    model = network()
    engine, optimizer, loader, scheduler = hvd.initialize(
        model=model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.5),
        model_parameters=model.parameters(),
        training_data=data,
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        config={**LEAST, "dataloader_drop_last": True},
    )
    batches = [x for (x,) in loader]
    assert [len(x) for x in batches] == [2, 2]
    seen = torch.cat(hvd.allgather_object(torch.cat(batches)[:, 0])).tolist()
    assert len(set(seen)) == 8
    for x in batches:
        engine.backward(engine(x / 80).sum())
        engine.step()
    assert engine.get_lr() == scheduler.get_last_lr() == [0.125]
    own = torch.optim.Adam(model.parameters())
    engine, optimizer, *_ = hvd.initialize(model=model, optimizer=own, config=LEAST)
    assert isinstance(optimizer, torch.optim.Adam)
    engine, optimizer, *_ = hvd.initialize(model=model, config=LEAST)
    assert optimizer is None and engine(torch.ones(1, 8)).shape == (1, 3)
    with pytest.raises(RuntimeError, match="no optimizer"):
        engine.step()


@ranks(2)
def test_gradients_are_divided_as_the_configuration_says():
    found = {}
    for name, more in {
        "mean": {},
        "prescaled": {"prescale_gradients": True},
        "divided": {"gradient_predivide_factor": 4.0},
        "half": {"communication_data_type": "fp16"},
        "sum": {"gradient_allreduce_op": "sum"},
    }.items():
        engine, *_ = hvd.initialize(
            model=torch.nn.Linear(4, 1, bias=False), config={**LEAST, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, **more}
        )
        before = engine.module.weight.detach().clone()
        engine.backward(engine(torch.full((1, 4), 1.0 + hvd.rank())).sum())
        engine.step()
        found[name] = (before - engine.module.weight).detach()
    for name, moved in found.items():
        torch.testing.assert_close(moved, torch.full((1, 4), 3.0 if name == "sum" else 1.5))


@ranks(2)
def test_optimizers_and_schedules_that_are_not_there_are_named():
    for more, text in (
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type: 'OneBitAdam' is not in torch.optim"),
        ({"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}}, "optimizer.params.learning_rate: AdamW has lr"),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}}, "write gradient_clipping"),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": False}}}, "optimizer.params.bias_correction: False"),
        ({"scheduler": {"type": "Warmup"}, "optimizer": ADAM}, "scheduler.type: 'Warmup'; there are WarmupLR"),
        ({"scheduler": {"type": "WarmupLR"}}, "no optimizer to schedule"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup": 1}}, "optimizer": ADAM}, "scheduler.params.warmup: WarmupLR has"),
        ({"scheduler": {"type": "WarmupDecayLR"}, "optimizer": ADAM}, "scheduler.params: .*total_num_steps"),
        ({"optimizer": ADAM, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}, "zero_optimization.stage: 3"),
    ):
        with pytest.raises(ConfigError, match=text):
            hvd.initialize(model=network(), config={**LEAST, **more})
    kinds = {}
    for kind, params in (("Adam", {}), ("AdamW", {}), ("Adam", {"adam_w_mode": False, "torch_adam": True}), ("RMSprop", {})):
        _, optimizer, *_ = hvd.initialize(model=network(), config={**LEAST, "optimizer": {"type": kind, "params": params}})
        kinds[kind, len(params)] = type(optimizer).__name__
    assert kinds == {("Adam", 0): "AdamW", ("AdamW", 0): "AdamW", ("Adam", 2): "Adam", ("RMSprop", 0): "RMSprop"}
    with pytest.raises(ValueError, match="there is no configuration"):
        hvd.initialize(model=network())
    with pytest.raises(ValueError, match="one of config"):
        hvd.initialize(model=network(), config=LEAST, config_params=LEAST)


# ---- ruedarun --deepspeed-config ----

SCRIPT = """if True:
    import torch, rueda.torch as hvd
    engine, *_ = hvd.initialize(model=torch.nn.Linear(2, 2))
    for _ in range(3):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
    print(engine.train_batch_size(), engine.global_steps, flush=True)
"""


def test_ruedarun_tells_ranks_where_the_configuration_is(tmp_path):
    config = {
        **LEAST,
        "optimizer": ADAM,
        "steps_per_print": 3,
        "wall_clock_breakdown": True,
        "zero_optimization": {"overlap_comm": True, "contiguous_gradients": True},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    code, output = launch(
        2, ["python", "-c", SCRIPT], options=["--deepspeed-config", "ds.json", "--no-prefix"], folder=tmp_path
    )
    assert code == 0, output
    assert output.count("4 3\n") == 2
    assert output.count("keys without effect: zero_optimization.overlap_comm, zero_optimization.contiguous_gradients (") == 1
    assert output.count("step=3, skipped=0, lr=[0.01], forward ") == 1


@pytest.mark.parametrize(
    "text, said",
    [(None, "No such file or directory"), ("{'a': 1}", "is no JSON object: line 1"), ('{"a": 1,}', "is no JSON object: line 1")],
)
def test_a_file_that_is_none_ends_before_any_rank_starts(tmp_path, text, said):
    path = tmp_path / "ds.json"
    if text is not None:
        path.write_text(text)
    code, output = launch(2, ["python", "-c", "print('started')"], options=["--deepspeed-config", str(path)])
    assert code == 2 and said in output and "started" not in output
