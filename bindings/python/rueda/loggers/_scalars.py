"""Ten scalars every so many steps, from rank 0, to whoever keeps them."""

import math

from rueda.common import basics
from rueda.loggers._needed import needed

_SUMS = ("seconds", "steps", "bytes", "operations", "batches", "planned_batches")
_SUMS += ("waiting_seconds", "late_ranks_seconds", "data_wait_seconds", "busy_seconds")


def _share(part, whole):
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def scalars(now, before=None):
    """Ten numbers of a rank's `rueda.stats`, by name.

    Parameters
    ----------
    now, before : dict
        Of ``rueda.stats()``; without ``before``, or if somebody has reset them in between, since init or that reset.

    Returns
    -------
    dict of str to float
        Seconds, bytes per second and shares of 1; of the time in between, but for ``step_seconds_p95``.
    """
    if before is None or any(now[name] < before[name] for name in _SUMS):
        before = dict.fromkeys([*_SUMS, "overlapped_share"], 0)
    more = {name: now[name] - before[name] for name in _SUMS}
    hidden = (
        now["overlapped_share"] * now["busy_seconds"]
        - before["overlapped_share"] * before["busy_seconds"]
    )
    seconds = more["seconds"]
    return {
        "rueda/step_seconds": seconds / more["steps"] if more["steps"] else math.nan,
        "rueda/step_seconds_p95": now["step_seconds_p95"],
        "rueda/bytes_per_second": more["bytes"] / seconds if seconds > 0 else 0.0,
        "rueda/operations_per_second": more["operations"] / seconds if seconds > 0 else 0.0,
        "rueda/waiting_share": _share(more["waiting_seconds"], seconds),
        "rueda/late_ranks_share": _share(more["late_ranks_seconds"], seconds),
        "rueda/data_wait_share": _share(more["data_wait_seconds"], seconds),
        "rueda/overlapped_share": _share(hidden, more["busy_seconds"]),
        "rueda/planned_share": _share(more["planned_batches"], more["batches"]),
        "rueda/world_size": float(now["size"]),
    }


class ScalarLogger:
    """Writes `scalars` from rank 0, once in ``every`` calls of `step`. Subclasses say where: ``write(values, step)``.

    All ranks may call it; ValueError when rueda is not initialised, or ``every`` is less than 1. One thread.
    """

    def __init__(self, every=50):
        if every < 1:
            raise ValueError(f"every is the number of steps between two looks, 1 or more, not {every}")
        self._every, self._count = every, 0
        self._before = self._last = None  # stats that the next scalars begin with, and of the last ones

    def step(self, step=None):
        """A step has ended; ``step``: its number, counted here without it. True if scalars were written."""
        self._count += 1
        if self._count % self._every or basics.rank() != 0:
            return False
        if self.is_kept():
            self._before = self._last
        self._last = now = basics.stats()
        values = scalars(now, self._before)
        self.write(
            {name: value for name, value in values.items() if not math.isnan(value)},
            self._count if step is None else step,
        )
        return True

    def write(self, values, step):
        """``values``: float by name; ``step``: an int."""
        raise NotImplementedError

    def is_kept(self):
        """Whether what was written last stays; else the next scalars replace it, and are of its time, too."""
        return True

    def close(self):
        """Nothing is written behind it."""


class TensorBoard(ScalarLogger):
    """To TensorBoard: ``target`` is a folder, or a writer with ``add_scalar(name, value, step)``, as PyTorch's is."""

    def __init__(self, target, every=50):
        super().__init__(every)
        self._folder = None if hasattr(target, "add_scalar") else target
        self._writer = target if self._folder is None else None

    def write(self, values, step):
        if self._writer is None:
            self._writer = needed("tensorboard.summary", "tensorboard", "rueda.loggers.TensorBoard").Writer(
                str(self._folder)
            )
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self):
        if self._folder is not None and self._writer is not None:
            self._writer.close()


class WeightsAndBiases(ScalarLogger):
    """To Weights & Biases: ``run`` is what ``wandb.init`` has returned; None: the run that is active.

    The scalars go with the row that the program's next ``run.log`` writes, so that they never move the run's own
    step, whatever steps the program gives; their own is ``rueda/step``. Those of one row are of the time since the
    row before. Of a program that writes no rows, ``alone=True`` writes them. ValueError when no run is active.
    """

    def __init__(self, run=None, every=50, alone=False):
        super().__init__(every)
        self._run, self._alone = run, alone
        self._row = None  # the run's step when the last scalars were given to it

    def _run_now(self):
        run = self._run or needed("wandb", "wandb", "rueda.loggers.WeightsAndBiases").run
        if run is None:
            raise ValueError("no run of Weights & Biases is active: call wandb.init() on rank 0, or give its run")
        return run

    def is_kept(self):
        return self._row is None or self._alone or self._run_now().step != self._row

    def write(self, values, step):
        run = self._run_now()
        if self._row is None:
            run.define_metric("rueda/step", hidden=True)
            run.define_metric("rueda/*", step_metric="rueda/step")
        self._row = run.step
        run.log({**values, "rueda/step": step}, commit=self._alone)


class MLflow(ScalarLogger):
    """To MLflow: to the run that is active, or to the one with this ``run_id``."""

    def __init__(self, run_id=None, every=50):
        super().__init__(every)
        self._run_id = run_id

    def write(self, values, step):
        mlflow = needed("mlflow", "mlflow", "rueda.loggers.MLflow")
        more = {} if self._run_id is None else {"run_id": self._run_id}
        mlflow.log_metrics(values, step=step, **more)
