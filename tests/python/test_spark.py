"""`rueda.spark`: ranks that are tasks of a barrier stage, on one machine."""

import contextlib
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import rueda
from engine_functions import is_rueda, told_and_true_place, where_and_sum
from expect import eventually
from rueda.compat import horovod

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java: scripts/packages.txt names it", allow_module_level=True)

import rueda.spark  # noqa: E402
from pyspark import SparkContext  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

PATHS = [pathlib.Path(rueda.__file__).resolve().parents[1], pathlib.Path(__file__).resolve().parent]


@contextlib.contextmanager
def session(cores):
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "512m")
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@pytest.fixture(scope="module", autouse=True)
def java():
    """One Java process for this module, which has ended with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, PATHS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield
    gateway = SparkContext._gateway
    if gateway is not None:
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def two(java):
    with session(2) as spark:
        yield spark


def sums(results):
    return [result[:3] for result in results]


def test_two_runs_in_a_row_in_the_same_processes(two):
    expected = [(0, 2, [6.0] * 3), (1, 2, [6.0] * 3)]
    first = rueda.spark.run(where_and_sum, (2,), num_proc=2, env={"SAID": "so"}, verbose=0)
    assert sums(first) == expected and [result[5] for result in first] == ["so", "so"]
    second = rueda.spark.run(where_and_sum, kwargs={"scale": 2})  # defaultParallelism: 2
    assert sums(second) == expected and [result[5] for result in second] == [None, None]
    assert {result[4] for result in first} == {result[4] for result in second}
    assert all(told == true for told, true in rueda.spark.run(told_and_true_place, env={"HOROVOD_SIZE": "7"}))
    others = two.sparkContext.parallelize(range(2), 2).map(lambda _: os.environ.get("HOROVOD_RANK"))
    assert others.collect() == [None] * 2, "the environment is as it was"
    assert rueda.spark.run(rueda.is_initialized) == [False, False], "each run has a job of its own"


def test_a_failing_task_names_rank_and_cause(two):
    def fail():
        import numpy
        import rueda as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("what is missing")
        hvd.allreduce(numpy.ones(3), name="x")

    with pytest.raises(rueda.spark.RankFailed, match="rank 1 of 2") as failed:
        rueda.spark.run(fail, num_proc=2)
    assert failed.value.rank == 1 and failed.value.pid > 0 and "in fail" in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    assert vars(pickle.loads(pickle.dumps(failed.value))) == vars(failed.value)

    def die():
        import os
        import signal

        import numpy
        import rueda as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(numpy.ones(3), name="x")

    with pytest.raises(rueda.spark.RankFailed) as failed:
        rueda.spark.run(die, num_proc=2)
    assert failed.value.rank == 1 and failed.value.cause.startswith("Python worker exited unexpectedly")
    assert len(rueda.spark.run(where_and_sum, num_proc=2)) == 2


def test_ctrl_c_cancels_the_stage(two):
    def endless():
        import time

        time.sleep(600)

    def interrupt():
        tracker = two.sparkContext.statusTracker()
        eventually(lambda: tracker.getActiveStageIds())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        rueda.spark.run(endless, num_proc=2)
    thread.join()
    assert len(rueda.spark.run(where_and_sum, num_proc=2)) == 2


def test_horovods_name_and_what_is_refused(two, monkeypatch):
    monkeypatch.syspath_prepend(horovod.path())
    import horovod.spark as horovods

    assert sums(horovods.run(where_and_sum, num_proc=2, use_gloo=True))[1] == (1, 2, [3.0] * 3)
    assert horovods.run(is_rueda, num_proc=2) == [True] * 2
    with pytest.raises(ValueError, match="use_mpi.*not started by MPI"):
        horovods.run(where_and_sum, num_proc=2, use_mpi=True)
    with pytest.raises(ImportError, match="horovod.spark.torch is not there: rueda has no Spark estimators"):
        from horovod.spark.torch import TorchEstimator  # noqa: F401
    with pytest.raises(ImportError, match="rueda.spark.KerasEstimator is not there: rueda has no Spark estimators"):
        from rueda.spark import KerasEstimator  # noqa: F401
    with pytest.raises(ImportError, match="run_elastic is not there"):
        horovods.run_elastic  # noqa: B018
    with pytest.raises(ValueError, match="num_proc=0"):
        rueda.spark.run(where_and_sum, num_proc=0)
    lock = threading.Lock()
    with pytest.raises(ValueError, match="cannot be sent to the ranks"):
        rueda.spark.run(lambda: lock, num_proc=2)


@pytest.mark.slow
def test_the_example_learns_the_digits(java):
    example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_spark.py"
    done = subprocess.run([sys.executable, example, "--ranks", "2"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"], done.stderr
    assert all(float(line.split()[-1]) > 0.9 for line in lines), lines


def test_too_few_slots_end_in_time_and_say_how_many_there_are(two):
    two.stop()
    with session(1):
        with pytest.raises(TimeoutError) as late:
            rueda.spark.run(where_and_sum, num_proc=2, start_timeout=0.5)
        assert "2 tasks had not begun within 0.5 s" in str(late.value)
        assert "present: 1 task slots" in str(late.value)
        assert sums(rueda.spark.run(where_and_sum)) == [(0, 1, [1.0] * 3)]
    with pytest.raises(RuntimeError, match="create a SparkSession first"):
        rueda.spark.run(where_and_sum)
