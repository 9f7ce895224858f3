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
from engine_functions import count_ranks, is_rueda, told_and_true_place, where_and_sum  # noqa: E402
from ray_cluster import cluster  # noqa: E402
from rueda.compat import horovod  # noqa: E402
from rueda.ray import ElasticRayExecutor, RankFailed, RayExecutor, RayHostDiscovery, Settings  # noqa: E402

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
    executor = start(num_hosts=2, num_workers_per_host=2, extra_env_vars={"SAID": "so", "HOROVOD_RANK": "7"})
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
    assert all(told == true and told[:2] == [str(rank), "4"] for rank, (told, true) in enumerate(executor.run(told_and_true_place)))
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
    assert all(told == true for told, true in two.run(told_and_true_place))


def logs(scale):
    import rueda as hvd
    from rueda.ray import ray_logger

    hvd.init()
    ray_logger.log({"chief": scale})
    ray_logger.log({"rank": hvd.rank()}, chief_only=False)
    return hvd.rank()


def test_callbacks_hear_what_ranks_log(start):
    executor = start(num_hosts=2)
    heard, again = [], []
    assert executor.run(logs, [3], callbacks=[heard.append, lambda info: again.append(info)]) == [0, 1]
    assert heard == again and sorted(map(str, heard)) == ["{'chief': 3}", "{'rank': 0}", "{'rank': 1}"]

    def wrong(info):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        executor.run(logs, [3], callbacks=[wrong, heard.append])
    assert len(heard) == 6, "the others are called all the same"
    assert executor.run(logs, [3]) == [0, 1] and len(heard) == 6  # nobody listens
    assert ray.get(executor.run_remote(logs, [3], callbacks=[heard.append])) == [0, 1]
    eventually(lambda: len(heard) == 9)
    with pytest.raises(TypeError, match="callbacks are functions of a dictionary; 7 is none"):
        executor.run(logs, [3], callbacks=[7])


def test_an_object_on_each_rank(start):
    class Model:
        def __init__(self, weight, name="w"):
            self.weight, self.name = weight, name

    nothing_is_left()  # of other tests: one node has room for both
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

    monkeypatch.setattr("rueda.ray._collecting.GRACE_SECONDS", 60)
    began = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 of 2") as failed:
        executor.run(fail)
    assert time.monotonic() - began < 40, "the other rank did not wait"
    assert (failed.value.rank, failed.value.pid) == (1, pids[1])
    assert failed.value.cause == "KeyError: 'what is missing'" and "in fail" in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    assert vars(pickle.loads(pickle.dumps(failed.value))) == vars(failed.value)
    assert [result[2] for result in executor.run(where_and_sum)] == [[3.0] * 3] * 2
    assert executor.run(os.getpid) == pids

    lock = threading.Lock()

    def hold(*_):
        return lock

    says = r"hold or its arguments cannot be sent to the ranks: cannot pickle '_thread.lock' object$"
    for call in (executor.run, executor.run_remote, executor.execute, executor.execute_single):
        with pytest.raises(ValueError, match=says):
            call(hold)
    with pytest.raises(ValueError, match="getpid or its arguments"):
        executor.run(os.getpid, [lock])
    with pytest.raises(ValueError, match="expected a function to run, found 3"):
        executor.run(3)
    assert executor.run(os.getpid) == pids, "no rank has begun"
    with pytest.raises(ValueError, match=says):
        RayExecutor(SETTINGS, min_workers=1).run(hold)


def test_a_killed_actor_is_named_to_peers_and_driver(start):
    executor = start(num_hosts=2, extra_env_vars={"RUEDA_DEAD_SECONDS": "60"})

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
    assert type(cause).__name__ == "RankLostError" and cause.rank == 1 and cause.seconds < 30
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(references[1])


def test_what_cannot_be_placed_is_listed(start, monkeypatch):
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=5)
    with pytest.raises(TimeoutError) as late:
        executor.start()
    text = str(late.value)
    assert "5 workers of {1 CPU} were not there within 1 s. Asked for, PACK: 5 x {1 CPU}. Present: node" in text
    assert text.count("2 of 2 CPU free") == 2, text
    nothing_is_left()
    monkeypatch.delattr(ray._private.state, "available_resources_per_node")  # which is Ray's own
    with pytest.raises(TimeoutError, match=r"Present: node \S+ \w+ with 2 CPU, 2 GPU; node \S+ \w+ with 2 CPU, 2 GPU$"):
        executor.start()
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


@pytest.mark.parametrize("call", ["run", "execute_single"])
def test_ctrl_c_leaves_nothing(call, start, heard_interrupts, tmp_path):
    executor = start(num_workers=2)
    begun = tmp_path / "begun"

    def interrupt():
        eventually(begun.exists)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def endless(_=None):
        import time

        begun.touch()
        time.sleep(600)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(executor, call)(endless)
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
        ({"num_workers": True}, r"RayExecutor: num_workers=True: expected a whole number, 1 or more"),
        ({"num_hosts": 1, "num_workers_per_host": 0.5}, "num_workers_per_host=0.5"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker=-1.: expected a number of CPUs, more than 0"),
        ({"num_workers": 1, "cpus_per_worker": "x"}, "cpus_per_worker='x'.: expected a number of CPUs"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker=0.: expected a number of CPUs, more than 0"),
        ({"num_workers": 1, "use_gpu": True, "cpus_per_worker": -1}, "expected a number of CPUs, 0 or more"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": -1}, "gpus_per_worker=-1.: expected a number of GPUs"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "gpus_per_worker=0.: expected a number of GPUs"),
        ({"min_workers": 0}, "min_workers=0: expected a whole number, 1 or more"),
        ({"min_workers": "2"}, "min_workers='2': expected a whole number"),
        ({"max_workers": 2.0}, "max_workers=2.0: expected a whole number"),
        ({"num_workers": 1, "min_workers": 4}, "min_workers=4, num_workers=1.: expected min_workers <= num_workers$"),
        ({"num_workers": 10, "max_workers": 2}, "num_workers=10, max_workers=2.: expected num_workers <= max_workers$"),
        ({"min_workers": 4, "max_workers": 2}, "min_workers=4, max_workers=2.: expected min_workers <= max_workers$"),
        ({"min_workers": 1, "num_hosts": 2}, "go with num_workers"),
        ({"min_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker=-1"),
        ({"min_workers": 1, "elastic_timeout": -1}, "elastic_timeout=-1.: expected seconds, more than 0"),
        ({"min_workers": 1, "elastic_timeout": "9"}, "elastic_timeout='9'.: expected seconds"),
        ({"min_workers": 1, "reset_limit": -1}, "reset_limit=-1: expected a whole number, 0 or more"),
        ({"min_workers": 1, "cooldown_range": (9, 1)}, r"cooldown_range.*1 to 3600 seconds, .* found \(9, 1\)"),
        ({"min_workers": 1, "cooldown_range": 5}, "cooldown_range.*expected two numbers, MIN and MAX, found 5"),
        ({"min_workers": 1, "override_discovery": False}, "needs a discovery in the settings"),
    ],
)
def test_wrong_numbers_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        RayExecutor(SETTINGS, **given)


def elastic(**more):
    return ElasticRayExecutor(ElasticRayExecutor.create_settings(), **more)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: RayExecutor(30, num_workers=1), TypeError, r"settings=30: expected what RayExecutor.create_settings\(\)"),
        (lambda: ElasticRayExecutor(SETTINGS), TypeError, r"expected what ElasticRayExecutor.create_settings\(\)"),
        (lambda: RayExecutor(Settings(timeout_s=-1), num_workers=1), ValueError, "timeout_s=-1"),
        (lambda: RayExecutor.create_settings(timeout_s=None), ValueError, "timeout_s=None"),
        (lambda: RayExecutor.create_settings(nics=5), ValueError, r"nics=5.: expected names .* such as \['eth0'\]"),
        (lambda: RayExecutor.create_settings(nics=[5]), ValueError, r"nics=\[5\]"),
        (lambda: ElasticRayExecutor.create_settings(0), ValueError, "min_num_proc=0"),
        (lambda: ElasticRayExecutor.create_settings(3, max_np=2), ValueError, "expected min_num_proc <= max_num_proc"),
        (lambda: ElasticRayExecutor.create_settings(timeout_s=0), ValueError, "timeout_s=0.: expected seconds"),
        (lambda: ElasticRayExecutor.create_settings(verbosity=1), TypeError, r"verbosity=\.\.\..: there is no such"),
        (lambda: RayHostDiscovery(cpus_per_slot=0), ValueError, r"RayHostDiscovery\(cpus_per_slot=0\)"),
        (lambda: elastic(cpus_per_slot=0), ValueError, r"^ElasticRayExecutor\(cpus_per_slot=0\)"),
        (lambda: elastic(use_gpu=True, gpus_per_slot=-1), ValueError, r"^ElasticRayExecutor\(gpus_per_slot=-1\)"),
        (lambda: elastic(gpus_per_slot=1), ValueError, "gpus_per_slot is given without use_gpu=True"),
    ],
)
def test_wrong_settings_are_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_settings_are_changed_and_have_horovods_names(monkeypatch):
    monkeypatch.syspath_prepend(horovod.path())
    from horovod.ray.elastic_v2 import RayHostDiscovery as OfWorkers
    from horovod.ray.runner import MiniSettings

    settings = MiniSettings(verbose=1, nics="lo,eth0", key=b"k", ssh_port=22)
    RayExecutor(settings, num_workers=1)
    assert (settings.nics, settings.timeout_s, settings.verbose) == ({"lo", "eth0"}, 300, 1)
    settings = RayExecutor.create_settings()
    settings.timeout_s, settings.elastic = 5, False
    settings.discovery = OfWorkers(use_gpu=True, cpus_per_worker=2, gpus_per_worker=1)
    assert settings.discovery.resources == {"CPU": 2, "GPU": 1} and isinstance(settings.discovery, RayHostDiscovery)
    RayExecutor(settings, min_workers=1, override_discovery=False)
    settings.discovery = "a script"
    with pytest.raises(TypeError, match=r"discovery='a script': .*find_available_hosts_and_slots\(\)"):
        RayExecutor(settings, min_workers=1, override_discovery=False)
    # examples/ray/pytorch_ray_elastic.py
    settings = ElasticRayExecutor.create_settings(verbose=True, ssh_port=22, extra_mpi_args="-x A", binding_args=None)
    ElasticRayExecutor(settings, use_gpu=True, cpus_per_slot=2)


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

    assert RuedaConfig(nics="eth0").nics == {"eth0"}
    for wrong in ({"nics": 5}, {"start_timeout": 0}):
        with pytest.raises(ValueError, match=rf"RuedaConfig\({next(iter(wrong))}="):
            RuedaConfig(**wrong)
    group, config = Group(), RuedaConfig(start_timeout=60, env_vars={"SAID": "so"})
    backend = config.backend_cls()
    for _ in range(2):  # as Ray Train does after a failure
        backend.on_start(group, config)
        results = group.execute(where_and_sum)
        assert [(rank, size, total, said) for rank, size, total, _, _, said in results] == [
            (rank, 2, [3.0] * 3, "so") for rank in range(2)
        ]
        assert all(told == true for told, true in group.execute(told_and_true_place))
        backend.on_shutdown(group, config)
        assert group.execute(os.getenv, "HOROVOD_RANK") == [None] * 2
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


def test_ranks_of_an_elastic_job_are_sent_nothing_that_is_rays():
    actor = ray.remote(num_cpus=0)(dict).remote()
    for held in (ray.put(3), actor):
        with pytest.raises(ValueError, match=r"cannot be sent to the ranks: .* is Ray's, and .* not connected to Ray"):
            RayExecutor(SETTINGS, min_workers=1, elastic_timeout=5).run(lambda held=held: held)
    ray.kill(actor)


def test_a_discovery_names_nodes_by_their_addresses(monkeypatch, capsys):
    def node(address, number):
        return {"NodeManagerAddress": address, "NodeID": f"{number}0000000ffff", "Alive": True, "Resources": {"CPU": 9}}

    nodes = [node("10.0.0.4", 1), node("fd00::5", 2), node("10.0.0.6", 3), node("10.0.0.6", 4)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)

    class Discovery:
        def find_available_hosts_and_slots(self):
            return {"10.0.0.4": 1, "fd00::5": 2, "10.0.0.6": 3, "10.0.0.6-40000000": 4, "localhost": 5}

    settings = ElasticRayExecutor.create_settings(min_num_proc=100, elastic_timeout=0.1)
    settings.discovery = Discovery()
    with pytest.raises(TimeoutError) as late:
        ElasticRayExecutor(settings, override_discovery=False).run(print)
    there = "10.0.0.4-10000000: 1, fd00--5-20000000: 2, 10.0.0.6-40000000: 4"
    assert str(late.value).endswith(f"slots present: {there}")
    names = "10.0.0.4-10000000, fd00--5-20000000, 10.0.0.6-30000000, 10.0.0.6-40000000"
    assert capsys.readouterr().err.splitlines() == [
        f"rueda.ray: the discovery names 10.0.0.6, which 2 nodes of Ray have: {names}",
        f"rueda.ray: the discovery names localhost, which no node of Ray is: {names}",
    ]


def test_horovods_elastic_script_with_a_discovery_of_its_own(tmp_path, capsys, monkeypatch):
    """The main block of its examples/ray/basic_ray_elastic.py."""
    monkeypatch.syspath_prepend(horovod.path())
    from horovod.ray import ElasticRayExecutor
    from horovod.ray.elastic import RayHostDiscovery

    class TestDiscovery(RayHostDiscovery):
        def __init__(self, use_gpu=False, cpus_per_slot=1, gpus_per_slot=1):
            super().__init__(use_gpu=use_gpu, cpus_per_slot=cpus_per_slot, gpus_per_slot=gpus_per_slot)
            self.busy = threading.Lock()

        def find_available_hosts_and_slots(self):
            assert self.busy.acquire(blocking=False), "two threads ask at once"
            try:
                hosts = super().find_available_hosts_and_slots()
                if (tmp_path / "2.ranks").exists():
                    hosts.popitem()
                return hosts
            finally:
                self.busy.release()

    settings = ElasticRayExecutor.create_settings(verbose=2)
    settings.discovery = TestDiscovery(use_gpu=True, cpus_per_slot=2)
    executor = ElasticRayExecutor(settings, use_gpu=True, cpus_per_slot=2, override_discovery=False)
    executor.start()
    [(rank, sizes)] = executor.run(lambda: count_ranks(1, tmp_path, [2, 1]))
    assert rank == 0 and sizes[0] == 2 and sizes[-1] == 1
    assert "has finished" in capsys.readouterr().err, "verbose"
    nothing_is_left()
