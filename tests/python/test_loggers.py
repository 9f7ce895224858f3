"""rueda.loggers: what TensorBoard, Weights & Biases, MLflow, Keras, Lightning and OpenTelemetry get (docs/monitoring.md)."""

import importlib.util
import json
import pathlib
import struct
import sys
import tempfile
import types

import numpy as np
import pytest
import rueda as hvd
from worlds import ranks

import rueda.loggers

NAMES = {
    "rueda/step_seconds", "rueda/step_seconds_p95", "rueda/bytes_per_second", "rueda/operations_per_second",
    "rueda/waiting_share", "rueda/late_ranks_share", "rueda/data_wait_share", "rueda/overlapped_share",
    "rueda/planned_share", "rueda/world_size",
}


def steps(logger, count):
    wrote = []
    for _ in range(count):
        hvd.allreduce(np.ones(1000, np.float32), name="gradient")
        wrote.append(logger.step())
    return wrote


class Kept(rueda.loggers.ScalarLogger):
    def __init__(self, every):
        super().__init__(every)
        self.kept = []

    def write(self, values, step):
        self.kept.append((step, values))


def numbers(**more):
    names = (*rueda.loggers._scalars._SUMS, "overlapped_share", "step_seconds_p95", "size")
    return {**dict.fromkeys(names, 0), **more}


def test_scalars_are_of_the_time_in_between():
    before = numbers(seconds=10, steps=100, bytes=1000, batches=10, planned_batches=0, busy_seconds=2, overlapped_share=0.5)
    now = numbers(seconds=20, steps=200, bytes=5000, batches=30, planned_batches=10, busy_seconds=4, overlapped_share=0.75,
                  waiting_seconds=5, late_ranks_seconds=1, data_wait_seconds=2, size=4, step_seconds_p95=0.2)
    found = rueda.loggers.scalars(now, before)
    assert set(found) == NAMES
    assert found == {
        "rueda/step_seconds": 0.1, "rueda/step_seconds_p95": 0.2, "rueda/bytes_per_second": 400.0,
        "rueda/operations_per_second": 0.0, "rueda/waiting_share": 0.5, "rueda/late_ranks_share": 0.1,
        "rueda/data_wait_share": 0.2, "rueda/overlapped_share": 1.0, "rueda/planned_share": 0.5, "rueda/world_size": 4.0,
    }
    # Somebody has reset the stats in between.
    assert rueda.loggers.scalars(before, now) == rueda.loggers.scalars(before)


@ranks(2)
def test_rank_0_writes_every_so_many_steps():
    logger = Kept(every=10)
    wrote = steps(logger, 35)
    if hvd.rank() == 0:
        assert [step for step, _ in logger.kept] == [10, 20, 30] and sum(wrote) == 3
        for _, values in logger.kept[1:]:
            assert set(values) == NAMES
            assert values["rueda/step_seconds"] > 0 and values["rueda/world_size"] == 2
    else:
        assert logger.kept == [] and not any(wrote)


@ranks(2)
def test_tensorboard_reads_what_was_written():
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tempfile.TemporaryDirectory() as folder:
        logger = rueda.loggers.TensorBoard(folder, every=5)
        steps(logger, 20)
        logger.close()
        if hvd.rank() != 0:
            return
        events = reader.EventAccumulator(folder)
        events.Reload()
        written = set(events.Tags()["scalars"]) or set(events.Tags()["tensors"])
        assert written == NAMES
        read = events.Tensors("rueda/world_size") if not events.Tags()["scalars"] else events.Scalars("rueda/world_size")
        assert [event.step for event in read] == [5, 10, 15, 20]


@ranks(2)
def test_a_writer_of_ones_own_is_taken():
    kept = []
    writer = types.SimpleNamespace(add_scalar=lambda name, value, step: kept.append((name, step)))
    logger = rueda.loggers.TensorBoard(writer, every=2)
    steps(logger, 4)
    logger.close()
    assert len(kept) == (20 if hvd.rank() == 0 else 0) or len(kept) == 19  # no step was timed before the first look


@ranks(2)
def test_weights_and_biases_and_mlflow():
    logged = []
    run = WandbRun()
    sys.modules["mlflow"] = types.SimpleNamespace(
        log_metrics=lambda values, step, run_id=None: logged.append(("mlflow", step, run_id)))
    try:
        steps(rueda.loggers.WeightsAndBiases(run, every=3, alone=True), 6)
        steps(rueda.loggers.MLflow("run7", every=3), 3)
    finally:
        del sys.modules["mlflow"]
    if hvd.rank() == 0:
        assert [row["rueda/step"] for row in run.rows] == [3, 6] and logged == [("mlflow", 3, "run7")]
        assert set(run.rows[1]) == NAMES | {"rueda/step"}
    else:
        assert logged == run.rows == []


def records_of(path):
    """The records of a file of Weights & Biases: LevelDB's format of logs, behind seven bytes."""
    data, at, record = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B"), data[:7]
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)  # behind a checksum
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or a last part
            yield record
            record = b""


def rows_of(folder):
    """What an offline run has kept: of each row its numbers by name."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = pathlib.Path(folder).glob("wandb/offline-run-*/*.wandb")
    rows = []
    for record in map(Record.FromString, records_of(path)):
        if record.history.item:
            items = ((each.key or "/".join(each.nested_key), json.loads(each.value_json)) for each in record.history.item)
            rows.append(dict(items))
    return rows


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
@ranks(2)
def test_weights_and_biases_itself_keeps_rows_with_steps():
    import wandb

    for alone, steps_of_rows in ((False, [10, 20, 30]), (True, [5, 10, 15, 20, 25, 30])):
        with tempfile.TemporaryDirectory() as folder:
            run = None
            if hvd.rank() == 0:
                quiet = wandb.Settings(mode="offline", silent=True, console="off")
                run = wandb.init(dir=folder, project="rueda", settings=quiet)
            logger = rueda.loggers.WeightsAndBiases(run, every=5, alone=alone)
            for epoch in (1, 2, 3):
                steps(logger, 10)
                if run and not alone:
                    run.log({"loss": 1 / epoch}, step=epoch)  # far fewer than steps
            if run is None:
                continue
            run.finish()
            wandb.teardown()  # its service writes the file
            rows = rows_of(folder)
        ours = [row for row in rows if "rueda/step" in row]
        assert [row["rueda/step"] for row in ours] == steps_of_rows, rows
        assert all(NAMES - {"rueda/step_seconds"} < set(row) for row in ours), rows
        assert [row["loss"] for row in rows if "loss" in row] == ([] if alone else [1, 1 / 2, 1 / 3]), rows
        assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows}), rows


@pytest.mark.parametrize("module, use", [
    ("wandb", lambda: rueda.loggers.WeightsAndBiases(every=1).write({}, 1)),
    ("mlflow", lambda: rueda.loggers.MLflow(every=1).write({}, 1)),
    ("tensorboard.summary", lambda: rueda.loggers.TensorBoard("x", every=1).write({}, 1)),
    ("keras", lambda: rueda.loggers.keras_callback(None)),
    ("opentelemetry.trace", lambda: rueda.loggers.OpenTelemetry()),
])
def test_what_is_not_installed_is_one_error(monkeypatch, module, use):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="pip install"):
        use()


class WandbRun:
    """A run of Weights & Biases, whose `log` drops what has a smaller step than the run."""

    def __init__(self):
        self.step, self.rows, self.dropped, self.metrics, self._row = 0, [], [], {}, {}

    def define_metric(self, name, step_metric=None, hidden=False):
        self.metrics[name] = step_metric

    def log(self, values, step=None, commit=None):
        if step is not None and step < self.step:
            self.dropped.append(values)
            return
        if step is not None and step > self.step:
            self._write(step)
        self._row.update(values)
        if commit or (commit is None and step is None):
            self._write(self.step + 1)

    def _write(self, step):
        if self._row:
            self.rows.append(self._row)
        self.step, self._row = step, {}


def test_scalars_live_beside_what_the_program_logs_with_steps_of_its_own(monkeypatch):
    now = numbers(size=1)
    monkeypatch.setattr(rueda.loggers._scalars.basics, "rank", lambda: 0)
    monkeypatch.setattr(rueda.loggers._scalars.basics, "stats", lambda: dict(now))
    for own_steps in (True, False):
        now.update(seconds=0, bytes=0)
        run = WandbRun()
        logger = rueda.loggers.WeightsAndBiases(run, every=10)
        for step in range(1, 101):
            now.update(seconds=step, bytes=step * (step if step > 50 else 1))
            logger.step()
            if step % 25 == 0:  # an epoch; its number is smaller than the number of steps
                run.log({"loss": 1.0}, **({"step": step // 25} if own_steps else {}))
        run.log({})
        assert run.dropped == [] and [row["loss"] for row in run.rows if "loss" in row] == [1.0] * 4
        ours = [row for row in run.rows if "rueda/step" in row]
        assert [row["rueda/step"] for row in ours] == [20, 50, 70, 100]
        # Nothing of the time between two rows is lost.
        assert [row["rueda/bytes_per_second"] for row in ours] == [1, 1, (70 * 70 - 50) / 20, (100 * 100 - 70 * 70) / 30]
        assert run.metrics == {"rueda/step": None, "rueda/*": "rueda/step"}
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))
    with pytest.raises(ValueError, match=r"wandb\.init\(\) on rank 0"):
        rueda.loggers.WeightsAndBiases().write({}, 1)


def test_mistakes():
    with pytest.raises(ValueError, match="1 or more, not 0"):
        Kept(every=0)
    with pytest.raises(ValueError, match="has not been initialized"):
        Kept(every=1).step()


def test_callbacks_call_the_logger(monkeypatch):
    called = []
    logger = types.SimpleNamespace(step=lambda step=None: called.append(step), close=lambda: called.append("closed"))
    lightning = types.ModuleType("lightning.pytorch")
    lightning.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning)
    callback = rueda.loggers.lightning_callback(logger)
    trainer = types.SimpleNamespace(global_step=7)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_train_end(trainer, None)
    assert called == [7, "closed"]


KERAS = """
import keras, numpy, rueda as hvd, rueda.loggers

class Kept(rueda.loggers.ScalarLogger):
    def write(self, values, step):
        print(step, len(values))

    def close(self):
        print("closed")

hvd.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callback = rueda.loggers.keras_callback(Kept(every=3))
model.fit(numpy.ones((8, 2)), numpy.ones((8, 1)), batch_size=2, epochs=2, verbose=0, callbacks=[callback])
"""


def test_a_fit_of_keras_calls_the_logger():
    import importlib.util
    import os
    import subprocess

    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    backend = next((name for name in ("jax", "tensorflow", "torch") if importlib.util.find_spec(name)), None)
    if backend is None:
        pytest.skip("Keras has no backend here")
    done = subprocess.run(
        [sys.executable, "-c", KERAS], env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["3", "6", "closed"], done.stdout


@ranks(2)
def test_spans_of_a_job():
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    kept = memory.InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with rueda.loggers.OpenTelemetry(every=10, tracer_provider=provider) as trace:
        trace.init()  # again, which changes nothing
        for _ in range(25):
            with trace.step():
                hvd.allreduce(np.ones(100, np.float32), name="gradient")
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["rueda.init", "rueda.step", "rueda.step", "rueda.step", "rueda.job"]
    job = spans[-1]
    assert job.attributes["rueda.rank"] == hvd.rank() and job.attributes["rueda.transport"] == "shm"
    assert [span.attributes["rueda.step"] for span in spans[1:4]] == [1, 11, 21]
    assert all(span.parent.span_id == job.context.span_id for span in spans[:-1])
    assert spans[2].attributes["rueda.bytes"] == 400
    kept.clear()
    lost = hvd.RankLostError("rank 3 was lost")
    lost.rank, lost.host, lost.cause = 3, "node", "killed"
    with pytest.raises(hvd.RankLostError):
        with rueda.loggers.OpenTelemetry(tracer_provider=provider):
            raise lost
    [job] = kept.get_finished_spans()
    assert not job.status.is_ok and job.attributes["rueda.lost.rank"] == 3
    assert job.events[0].attributes["rueda.lost.host"] == "node"
