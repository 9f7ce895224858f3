"""`rueda.ray`: ranks that are actors, on a cluster of two nodes."""

import importlib.util
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from expect import eventually

pytest.importorskip("ray")

import ray  # noqa: E402
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402
from engine_functions import count_ranks, is_rueda, where_and_sum  # noqa: E402
from ray_cluster import cluster  # noqa: E402
from rueda.compat import horovod  # noqa: E402
from rueda.ray import RankFailed, RayExecutor  # noqa: E402

SETTINGS = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=60)


@pytest.fixture(scope="module", autouse=True)
def two_nodes():
    with cluster(nodes=2, cpus=2, num_gpus=2):  # GPUs are numbers here
        yield


@pytest.fixture
def start():
    """Starts an executor that is shut down with the test."""
    started = []

    def begin(settings=SETTINGS, **more):
        extra = more.pop("extra_env_vars", None)
        executor = RayExecutor(settings, **more)
        executor.start(extra_env_vars=extra)
        started.append(executor)
        return executor

    yield begin
    for executor in started:
        executor.shutdown()


def groups_left():
    return [g for g in placement_group_table().values() if g["state"] in ("CREATED", "PENDING")]


def nothing_is_left():
    eventually(lambda: not groups_left())
    eventually(lambda: ray.available_resources().get("CPU") == 4)


def test_ranks_are_dense_on_two_nodes_and_results_come_in_their_order(start):
    executor = start(num_hosts=2, num_workers_per_host=2, extra_env_vars={"SAID": "so"})
    results = executor.run(where_and_sum, [2], {})
    assert [(rank, size, total, said) for rank, size, total, _, _, said in results] == [
        (rank, 4, [20.0] * 3, "so") for rank in range(4)
    ]
    nodes = [result[3] for result in results]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    # The job goes on in the same processes, which are ranks of it already.
    again = ray.get(executor.run_remote(where_and_sum, kwargs={"scale": 1}))
    assert [result[4] for result in again] == [result[4] for result in results]
    assert all(result[2] == [10.0] * 3 for result in again)
    executor.shutdown()
    nothing_is_left()
    with pytest.raises(ValueError, match=r"call start\(\) first"):
        executor.run(where_and_sum)


def test_two_executors_at_once_and_ranks_that_meet_at_a_port(start):
    one = start(num_hosts=2)
    by_port = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=60, nics={"lo"})
    two = start(by_port, num_hosts=2)
    first, second = one.run_remote(where_and_sum, [1]), two.run_remote(where_and_sum, [10])
    assert [result[2] for result in ray.get(second)] == [[30.0] * 3] * 2
    assert [result[2] for result in ray.get(first)] == [[3.0] * 3] * 2

    def where_the_key_is():
        import os

        from rueda import _init_options

        given = _init_options._given
        with open("/proc/self/cmdline", "rb") as line, open("/proc/self/environ", "rb") as variables:
            seen = line.read() + variables.read() + repr(os.environb).encode()
        key = given["key"]
        return given["rendezvous"].split(":")[0], len(key), key in seen or key.hex().encode() in seen

    assert two.run(where_the_key_is) == [("127.0.0.1", 32, False)] * 2

    def leave_and_join_again():
        import rueda as hvd

        hvd.shutdown()
        hvd.init()
        return hvd.allgather_object(hvd.rank())

    assert two.run(leave_and_join_again) == [[0, 1]] * 2


def test_an_object_on_each_rank(start):
    class Model:
        def __init__(self, weight, name="w"):
            self.weight, self.name = weight, name

    executor = RayExecutor(SETTINGS, num_workers=2, use_gpu=True)
    executor.start(Model, [3], {"name": "v"})
    try:
        assert executor.run(os.getenv, ["CUDA_VISIBLE_DEVICES"]) == ["0,1"] * 2, "those of the node"
        assert executor.execute(lambda model: (model.weight, model.name)) == [(3, "v")] * 2
        assert executor.execute_single(lambda model: model.weight) == 3
        with pytest.raises(ValueError, match="started already"):
            executor.start()
    finally:
        executor.shutdown()


def test_a_failure_names_its_rank_and_the_workers_stay(start, monkeypatch):
    monkeypatch.syspath_prepend(horovod.path())  # as with --horovod; workers are told
    executor = start(num_workers=2)
    assert executor.run(is_rueda) == [True] * 2
    pids = executor.run(os.getpid)

    def fail():
        import numpy
        import rueda as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("what is missing")
        hvd.allreduce(numpy.ones(3), name="x")

    began = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 of 2") as failed:
        executor.run(fail)
    assert time.monotonic() - began < 4, "the other rank did not wait"
    assert (failed.value.rank, failed.value.pid) == (1, pids[1])
    assert failed.value.cause == "KeyError: 'what is missing'" and "in fail" in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    assert vars(pickle.loads(pickle.dumps(failed.value))) == vars(failed.value)
    assert [result[2] for result in executor.run(where_and_sum)] == [[3.0] * 3] * 2
    assert executor.run(os.getpid) == pids


def test_a_killed_actor_is_named_to_peers_and_driver(start):
    executor = start(num_hosts=2)

    def train():
        import os
        import signal
        import time

        import numpy
        import rueda as hvd

        hvd.init()
        hvd.allreduce(numpy.ones(1), name="start")
        began = time.monotonic()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce(numpy.ones(1), name="next")
        except hvd.common.exceptions.RankLostError as lost:
            lost.seconds = time.monotonic() - began
            raise

    *_, (_, _, _, node, pid, _) = executor.run(where_and_sum)
    with pytest.raises(RankFailed) as failed:
        executor.run(train)
    error = failed.value
    assert (error.rank, error.pid) == (1, pid) and node in error.node, str(error)
    assert f"pid {pid}" in str(error) and node in str(error)
    assert "SIGKILL" in str(error) or "connection error" in str(error), str(error)
    nothing_is_left()

    executor.start()
    references = executor.run_remote(train)
    with pytest.raises(Exception) as lost:
        ray.get(references[0])
    cause = pickle.loads(pickle.dumps(lost.value.cause))
    assert type(cause).__name__ == "RankLostError" and cause.rank == 1 and cause.seconds < 2
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(references[1])


def test_what_cannot_be_placed_is_listed(start):
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=5)
    with pytest.raises(TimeoutError) as late:
        executor.start()
    text = str(late.value)
    assert "5 workers of {1 CPU} were not there within 1 s. Asked for, PACK: 5 x {1 CPU}. Present: node" in text
    assert text.count("2 of 2 CPU free") == 2, text
    nothing_is_left()
    executor = RayExecutor(
        RayExecutor.create_settings(placement_group_timeout_s=1), num_hosts=1, use_gpu=True, gpus_per_worker=3
    )
    with pytest.raises(TimeoutError, match=r"1 x \{1 CPU, 3 GPU\}"):
        executor.start()
    nothing_is_left()


def test_the_current_placement_group_is_used_and_stays():
    group = placement_group([{"CPU": 1}] * 3)
    ray.get(group.ready())

    def within(workers):
        executor = RayExecutor(SETTINGS, num_workers=workers)
        executor.start()
        try:
            return executor.run(where_and_sum)
        finally:
            executor.shutdown()

    strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    task = ray.remote(within).options(num_cpus=1, scheduling_strategy=strategy)
    assert [result[2] for result in ray.get(task.remote(2))] == [[3.0] * 3] * 2
    assert [g["placement_group_id"] for g in groups_left()] == [group.id.hex()]
    with pytest.raises(ValueError, match=r"holds 3 workers of \{1 CPU\}, not 4"):
        ray.get(task.remote(4))
    remove_placement_group(group)
    nothing_is_left()


@pytest.fixture
def heard_interrupts():
    """Whatever the tests were started by: a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_nothing(start, heard_interrupts):
    executor = start(num_workers=2)
    started = threading.Event()

    def interrupt():
        started.wait()
        eventually(lambda: ray.available_resources().get("CPU") == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def endless():
        import time

        time.sleep(600)

    thread = threading.Thread(target=interrupt)
    thread.start()
    started.set()
    with pytest.raises(KeyboardInterrupt):
        executor.run(endless)
    thread.join()
    nothing_is_left()


def test_a_start_that_fails_leaves_nothing():
    class Broken:
        def __init__(self):
            raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        RayExecutor(SETTINGS, num_workers=2).start(Broken)
    nothing_is_left()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_workers": 2, "num_hosts": 1}, "both given"),
        ({}, "give num_workers, or num_hosts"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "without use_gpu"),
    ],
)
def test_wrong_numbers_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        RayExecutor(SETTINGS, **given)


def test_an_interface_that_is_not_there_is_named():
    settings = RayExecutor.create_settings(placement_group_timeout_s=60, nics=["nowhere0"])
    with pytest.raises(ValueError, match=r"no network interface .* among nowhere0; it has .*lo"):
        RayExecutor(settings, num_workers=1).start()
    nothing_is_left()


def test_workers_of_ray_train_become_ranks():
    pytest.importorskip("ray.train", reason="needs ray[train]")
    if importlib.util.find_spec("ray.train.v2") is None:
        pytest.skip("this Ray has no Ray Train v2 (2.40 has none, 2.44.1 has)")
    from rueda.ray.train import RuedaConfig

    @ray.remote(num_cpus=1)
    class Worker:
        def call(self, function, *args):
            return function(*args)

    class Group:  # what Ray Train hands to backends
        def __init__(self):
            self.workers = [Worker.remote() for _ in range(2)]

        def execute(self, function, *args):
            return ray.get([worker.call.remote(function, *args) for worker in self.workers])

        def execute_single_async(self, rank, function, *args):
            return self.workers[rank].call.remote(function, *args)

    group, config = Group(), RuedaConfig(start_timeout=60, env_vars={"SAID": "so"})
    backend = config.backend_cls()
    for _ in range(2):  # as Ray Train does after a failure
        backend.on_start(group, config)
        results = group.execute(where_and_sum)
        assert [(rank, size, total, said) for rank, size, total, _, _, said in results] == [
            (rank, 2, [3.0] * 3, "so") for rank in range(2)
        ]
        backend.on_shutdown(group, config)
    for worker in group.workers:
        ray.kill(worker)
    nothing_is_left()


def test_ray_train_without_its_second_version_is_one_error():
    pytest.importorskip("ray.train", reason="needs ray[train]")
    if importlib.util.find_spec("ray.train.v2") is None:
        pytest.skip("this Ray has no Ray Train v2 (2.40 has none, 2.44.1 has)")
    code = "from rueda.ray.train import RuedaTrainer\nRuedaTrainer(print)"
    said = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "RAY_TRAIN_V2_ENABLED": "0"}, capture_output=True, text=True
    )
    assert re.search(r"RuntimeError: .* off in this Ray [\d.]+: set RAY_TRAIN_V2_ENABLED=1 ", said.stderr), said.stderr


def test_an_elastic_job_replaces_a_killed_rank(tmp_path, capsys):
    executor = RayExecutor(SETTINGS, num_workers=3, min_workers=2, max_workers=3)
    executor.start(extra_env_vars={"SAID": "so"})
    results = executor.run(count_ranks, [8, tmp_path, [3]], {"victim": 1})
    assert [rank for rank, _ in results] == [0, 1] and results[0][1] == results[1][1]
    sizes = results[0][1]
    assert sizes[:5] == [3] * 5 and len(sizes) >= 8, sizes
    executor.shutdown()
    assert "was lost: killed by signal 9 (SIGKILL)" in capsys.readouterr().err
    nothing_is_left()
    with pytest.raises(ValueError, match="come and go: use run"):
        executor.execute(print)
    with pytest.raises(ValueError, match="make it in the function"):
        executor.start(dict)
