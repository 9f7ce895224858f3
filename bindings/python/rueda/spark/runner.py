"""`run`: a function on every rank of a job whose ranks are tasks of Spark."""

import os
import re
import secrets
import threading
import time

from pyspark import InheritableThread, SparkContext, cloudpickle
from rueda import _outcomes
from rueda._numbers import whole_number
from rueda._outcomes import Outcome
from rueda.compat import horovod
from rueda.spark import _task

_LOOK_SECONDS = 0.05  # between looks whether the tasks have begun; none once they have


def run(fn, args=(), kwargs=None, num_proc=None, start_timeout=None, env=None, verbose=1):
    """Runs ``fn(*args, **kwargs)`` on every rank and returns what they returned, in the order of ranks.

    Ranks are the tasks of one barrier stage, so all of them run at once; rank is the number of the task. ``fn`` calls
    ``hvd.init()``, without arguments. The processes may be those of an earlier run. Ctrl-C cancels the stage.

    Parameters
    ----------
    fn : callable
    args : sequence
    kwargs : dict, optional
    num_proc : int, optional
        Number of ranks; default: ``sparkContext.defaultParallelism``.
    start_timeout : float, optional
        Seconds in which all tasks must have begun; default: ``HOROVOD_SPARK_START_TIMEOUT``, else 600.
    env : dict, optional
        Variables for the ranks' environment, while ``fn`` runs.
    verbose : int
        0: the ranks do not print where they are.

    Raises
    ------
    RankFailed
        Names the rank and the cause; after an exception of ``fn`` also node and pid.
    TimeoutError
        Not enough task slots were free in time; it says how many there are.
    RuntimeError
        There is no SparkContext in this process.
    """
    if not callable(fn):
        raise ValueError(f"expected a function to run, found {fn!r}")
    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError(
            "there is no SparkContext in this process: create a SparkSession first (SparkSession.builder.getOrCreate())"
        )
    if num_proc is None:
        num_proc = context.defaultParallelism
    num_proc = whole_number("run: num_proc", num_proc, 1)
    if start_timeout is None:
        start_timeout = float(os.environ.get("HOROVOD_SPARK_START_TIMEOUT") or 600)
    variables = {name: str(value) for name, value in (env or {}).items()}
    try:
        work = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise ValueError(f"the function or its arguments cannot be sent to the ranks: {error}") from error
    task = _task.make(work, variables, verbose, horovod.is_asked_for())
    stage = _Stage(context, task, num_proc, start_timeout)
    reports, error = stage.run()
    if error is not None:
        raise _stage_failure(error, num_proc) from error
    reports.sort(key=lambda report: report[0])
    facts = [report[1] for report in reports]
    return _outcomes.results(
        [report[2] for report in reports],
        nodes=[each["node"] for each in facts],
        pids=[each["pid"] for each in facts],
        pickler=cloudpickle,
    )


class _Stage:
    """One barrier stage. Java is asked by two threads of its own: Ctrl-C in the middle of a call would end
    the connection of the thread that it interrupts."""

    def __init__(self, context, task, size, start_timeout):
        self._context, self._task, self._size = context, task, size
        self._seconds = start_timeout
        self._deadline = time.monotonic() + start_timeout
        self._group = f"rueda-{secrets.token_hex(8)}"
        self._ended = threading.Event()  # there is a result or an error
        self._given_up = threading.Event()  # the stage is to be cancelled
        self._turn = threading.Event()  # one of both
        self._collecting = InheritableThread(target=self._collect, daemon=True)
        self._reports, self._error = None, None

    def run(self):
        """(what the tasks reported, None), or (None, Spark's error)."""
        watching = InheritableThread(target=self._watch, daemon=True)
        self._collecting.start()
        watching.start()
        try:
            self._ended.wait()
        except BaseException:
            self._give_up()
            raise
        if isinstance(self._error, TimeoutError):
            raise self._error
        return self._reports, self._error

    def _collect(self):
        try:
            # Else Spark would look again every 15 s, and could not be told to forget the stage in between.
            while _slots(self._context) < self._size:
                if self._given_up.wait(_LOOK_SECONDS):
                    return
            self._context.setJobGroup(self._group, f"rueda: {self._size} ranks", True)
            tasks = self._context.parallelize(range(self._size), self._size).barrier()
            if not self._given_up.is_set():
                self._reports = tasks.mapPartitions(self._task).collect()
        except Exception as error:
            self._error = self._error or error
        finally:
            self._ended.set()
            self._turn.set()

    def _watch(self):
        while not self._turn.wait(_LOOK_SECONDS):
            if self._has_begun():
                self._turn.wait()
            elif time.monotonic() >= self._deadline:
                self._error = TimeoutError(
                    f"{self._size} tasks had not begun within {self._seconds:g} s: asked for {self._size} ranks at "
                    f"once; present: {_slots(self._context)} task slots, other jobs' included. Give Spark more cores "
                    "or executors, or ask for a smaller num_proc"
                )
                self._give_up()
                self._ended.set()
        while self._given_up.is_set() and self._collecting.is_alive():
            self._context.cancelJobGroup(self._group)  # which may be about to begin
            self._collecting.join(_LOOK_SECONDS)

    def _give_up(self):
        self._given_up.set()
        self._turn.set()

    def _has_begun(self):
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._group):
            for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                info = tracker.getStageInfo(stage)
                if info is not None and info.numActiveTasks + info.numCompletedTasks >= self._size:
                    return True
        return False


def _slots(context):
    """Tasks that can run at once, free or not."""
    scheduler = context._jsc.sc()
    profile = scheduler.resourceProfileManager().defaultResourceProfile()
    return scheduler.maxNumConcurrentTasks(profile)


def _stage_failure(error, size):
    """The error for a stage without reports: a task's process died, say."""
    lines = str(getattr(error, "java_exception", None) or error).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("\tat "))
    task = re.search(r"Task (\d+) in stage|ResultTask\(\d+, (\d+)\)", text)
    if task is None:
        return RuntimeError(f"Spark ended the {size} ranks: {text}")
    outcomes = [Outcome("missing")] * size
    cause = re.search(r"(Python worker [^\n.]*|Executor[A-Z][^\n]*|TaskKilled[^\n]*)", text[task.end() :])
    rank = int(task.group(1) or task.group(2))
    outcomes[rank] = Outcome("dead", what=cause.group(1) if cause else lines[0], trace=text)
    return _outcomes.rank_failed(outcomes, rank)
