"""An elastic script as Horovod's users have them, with what its arguments ask for; it can be replayed exactly.

    horovod_script.py FOLDER STEPS SIZE FEATURES [MEMBER:PHASE:STEP[:HOW] ...]

It ends when STEPS steps are committed, SIZE ranks having made the last one (0: any number). FEATURES: words with commas.
MEMBER:PHASE:STEP: that member comes to an end there, in the first step from that one on in which it passes the place; HOW
is ``kill``, ``stop`` (until somebody ends it), ``raise`` or the code of a `sys.exit`.

Each rank writes into FOLDER/<member>, line by line: ``did STEP SIZE EPOCH TOTAL DIGEST`` for
each step that is acknowledged (the epoch is the job's), ``saw STEP EPOCH ROUND SAMPLES`` for what it takes from a
sampler, ``end ...`` when it is done.
"""

import contextlib
import os
import signal
import sys
import time

import torch
from horovod_model import RATE, ROWS, SAMPLES, WIDTH, digest_of, loss_of, made


def main():
    import horovod.torch as hvd
    from horovod.common.elastic import run_fn
    from rueda._runtime import runtime  # the number of this process, which Horovod has not

    folder, steps, size, features = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), set(sys.argv[4].split(","))
    faults = [(*fault.split(":"), "kill")[:4] for fault in sys.argv[5:]]
    me = os.environ["RUEDA_MEMBER"]
    report = os.open(os.path.join(folder, me), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(*words):
        os.write(report, (" ".join(map(str, words)) + "\n").encode())

    def pass_by(phase, step):
        for member, where, when, how in faults:
            if member != me or where != phase or step < int(when):
                continue
            if how == "raise":
                raise ValueError("a fault of the script's own")
            if how not in ("kill", "stop"):
                sys.exit(int(how))
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    hvd.init()
    if "twice" in features:
        hvd.shutdown()
        hvd.init()
    models, optimizers = made(features)
    if "norm" in features:
        models = [hvd_norm(hvd, model) for model in models]
        layers = [p for p in models[0].parameters() if p is not models[0].count]
        optimizers[0].param_groups[1]["params"] = layers
    wanted = {"op": hvd.Adasum if "adasum" in features else hvd.Average if "average" in features else hvd.Sum}
    if "fp16" in features:
        wanted["compression"] = hvd.Compression.fp16
    if "accumulate" in features:
        wanted["backward_passes_per_step"] = 2
    if "private" in features:
        wanted["gradients_in_arena"] = False
    if "arena" in features:
        wanted["gradients_in_arena"] = True
    if "grouped" in features:
        wanted["groups"] = 2
    plain = optimizers
    optimizers = [
        hvd.DistributedOptimizer(
            optimizer, named_parameters=[(f"{i}.{name}", p) for name, p in models[i].named_parameters()], **wanted
        )
        for i, optimizer in enumerate(plain)
    ]
    called = [torch.compile(model) if "compile" in features else model for model in models]
    more, callbacks, sampler = {}, [], None
    schedule = scaler = None
    if "schedule" in features:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], [lambda step: 1.0, lambda step: 0.5 ** (step // 8)])
        more["schedule"] = schedule
    if "scaler" in features:
        scaler = more["scaler"] = torch.amp.GradScaler("cpu")
    elif "amp" in features:
        scaler = torch.amp.GradScaler("cpu", enabled=False)
    if "sampler" in features:
        dataset = torch.utils.data.TensorDataset(torch.arange(SAMPLES))
        sampler = more["sampler"] = hvd.elastic.ElasticSampler(dataset)
    pair = evens = None
    if "sets" in features:
        pair = hvd.add_process_set([0, 1])
        evens = hvd.add_process_set(hvd.ProcessSet(range(0, hvd.size(), 2)))

    def rescale():
        group, rate = optimizers[0].param_groups[1], RATE * hvd.size()
        if schedule is not None:
            schedule.base_lrs[1] = rate
            group["lr"] = rate * 0.5 ** (schedule.last_epoch // 8)
        else:
            group["lr"] = rate

    if "rescale" in features:
        rescale()
        callbacks.append(rescale)
    callbacks.append(lambda: pass_by("reset", state.step))

    Plain = hvd.elastic.TorchState
    if "custom" in features:
        Plain = custom_state(hvd)

    class State(Plain):
        syncs = 0

        def save(self):
            pass_by("save", getattr(self, "step", -1))
            super().save()
            pass_by("saved", getattr(self, "step", -1))

        def sync(self):
            pass_by("sync", self.syncs)
            self.syncs += 1
            super().sync()
            pass_by("synced", self.syncs)

        def restore(self):
            pass_by("restore", self.step)
            super().restore()

    if len(models) == 1:
        state = State(model=models[0], optimizer=optimizers[0], step=0, size=0, where=0, total=0, round=0, **more)
    else:
        state = State(
            one=models[0], two=models[1], first=optimizers[0], second=optimizers[1],
            step=0, size=0, where=0, total=0, round=0, **more,
        )  # fmt: skip
    state.register_reset_callbacks(callbacks)
    if "guard" in features:
        for optimizer in optimizers:
            hvd.elastic.guard(optimizer, state)
    for model in models:
        model.fc.weight.register_hook(lambda grad: pass_by("hook", state.step))

    def acknowledged():
        say("did", state.step - 1, state.size, state.where, state.total, digest_of(models))

    def compute(step):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for model, optimizer in zip(called, optimizers):
            for part in range(2 if "accumulate" in features else 1):
                pass_by("forward", step)
                with torch.autocast("cpu", torch.bfloat16) if "amp" in features else contextlib.nullcontext():
                    loss = loss_of(model, step, hvd.rank(), part)
                if scaler is not None:
                    loss = scaler.scale(loss)
                pass_by("backward", step)
                loss.backward()
            pass_by("step", step)
            if scaler is not None:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                optimizer.step()
            pass_by("stepped", step)
        if scaler is not None:
            scaler.update()
        if schedule is not None:
            schedule.step()

    def extras(step):
        nonlocal pair, evens
        if "objects" in features:
            mine = {"rank": hvd.rank(), "step": step, "pad": "x" * (10 * hvd.rank())}
            found = hvd.allgather_object(mine)
            assert [each["rank"] for each in found] == list(range(hvd.size())) and {each["step"] for each in found} == {step}
            pass_by("objects", step)
            assert hvd.broadcast_object(mine, root_rank=hvd.size() - 1)["rank"] == hvd.size() - 1
        if "sets" in features:
            for each in (pair, evens):
                if each.included():
                    pass_by("set", step)
                    told = hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=each, name=f"in a set of {len(each.ranks)}")
                    assert told.tolist() == [each.size()] * 3
        if "join" in features and step % 4 == 3:
            for _ in range(hvd.rank()):
                hvd.allreduce(torch.ones(5), name="uneven")
            pass_by("join", step)
            assert hvd.join() == hvd.size() - 1 or hvd.size() == 1
        if "async" in features:
            handles = [hvd.allreduce_async(torch.full((100,), 2.0), op=hvd.Sum, name=f"async.{i}") for i in range(4)]
            pass_by("async", step)
            assert all(hvd.synchronize(handle)[0].item() == 2 * hvd.size() for handle in handles)

    def train_step(state):
        step = state.step
        if step >= steps:
            time.sleep(0.02)  # nothing depends on it: others need the processor to begin
        state.size, state.where = hvd.size(), runtime.epoch.number
        compute(step)
        if "guard" in features:
            # A rank may have begun before the loss, another behind it.
            state.size, state.where = optimizers[0].contributors, runtime.epoch.number
        extras(step)
        state.total += (step + 1) * state.size
        if "adasum" not in features and "average" not in features:
            assert models[0].count.item() == -state.total
        state.step = step + 1

    def leave_and_join():
        hvd.shutdown()
        hvd.init()

    @(lambda func: run_fn(func, leave_and_join)) if "reset" in features else hvd.elastic.run
    def train(state, first, *, second):
        assert (first, second) == (1, [2])
        say("epoch", runtime.epoch.number, hvd.rank(), hvd.size())
        if state.step:  # the commit may have been left by an interrupt
            acknowledged()
        while state.step < steps or size not in (0, state.size):
            if sampler is None:
                train_step(state)
                pass_by("commit", state.step - 1)
                state.commit()
                acknowledged()
                pass_by("done", state.step - 1)
                continue
            loader = torch.utils.data.DataLoader(dataset, batch_size=ROWS, sampler=sampler)
            for number, (batch,) in enumerate(loader):
                say("saw", state.step, runtime.epoch.number, state.round, ",".join(map(str, batch.tolist())))
                train_step(state)
                sampler.record_batch(number, ROWS)
                pass_by("commit", state.step - 1)
                state.commit()
                acknowledged()
                pass_by("done", state.step - 1)
            state.round += 1
            sampler.set_epoch(state.round)
        return state.step, hvd.rank()

    result = train(state, 1, second=[2])
    assert result == (state.step, hvd.rank())
    say("end", state.step, state.total, digest_of(models))
    pass_by("end", state.step)
    hvd.shutdown()
    return state.step


def hvd_norm(hvd, model):
    model.norm = hvd.SyncBatchNorm(WIDTH)
    return model


def custom_state(hvd):
    """A class as users write it: it knows nothing of rueda."""
    import copy

    from horovod.common.elastic import ObjectState

    class ModelState(ObjectState):
        def __init__(self, model, optimizer, **kwargs):
            self.model, self.optimizer = model, optimizer
            self.kept = None
            super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **kwargs)
            self.kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())

        def save(self):
            self.kept = copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())
            super().save()

        def restore(self):
            self.model.load_state_dict(self.kept[0])
            self.optimizer.load_state_dict(self.kept[1])
            super().restore()

        def sync(self):
            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
            super().sync()
            self.save()

    return ModelState


if __name__ == "__main__":
    main()
