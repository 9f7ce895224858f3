"""``horovod.runner`` under rueda: the helpers that scripts import are there, what cannot be says why."""

import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest
import rueda
from rueda.compat import horovod

PACKAGE = pathlib.Path(rueda.__file__).resolve().parents[1]

sys.path.insert(0, horovod.path())
try:
    from horovod.runner.common.util import codec, env, host_hash, hosts, safe_shell_exec, secret, timeout, tiny_shell_exec
    from horovod.runner.util import threads
finally:
    sys.path.remove(horovod.path())
    for name in [name for name in sys.modules if name == "horovod" or name.startswith("horovod.")]:
        del sys.modules[name]


def test_slots_are_given_out_host_by_host():
    found = hosts.get_host_assignments(hosts.parse_hosts("a:2, b:3,c:1"), 4, 5)
    assert [(slot.hostname, slot.local_rank, slot.local_size) for slot in found] == [
        ("a", 0, 2), ("a", 1, 2), ("b", 0, 3), ("b", 1, 3), ("b", 2, 3),
    ]  # fmt: skip
    assert [(slot.cross_rank, slot.cross_size) for slot in found] == [(0, 2), (0, 2), (1, 2), (1, 2), (0, 1)]
    assert found[3].to_response_string() == "3,5,1,3,1,2"
    with pytest.raises(ValueError, match="more processes .7. than there are available slots .6."):
        hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3,c:1"), 7)


def test_hosts_as_text_and_as_files(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\n\n# none\nb slots=4 # four\nc\n")
    assert hosts.parse_host_files(tmp_path / "hosts") == "a:2,b:4,c:1"
    assert hosts.parse_hosts_and_slots("a:2,b:4") == (["a", "b"], {"a": 2, "b": 4})
    with pytest.raises(ValueError, match="worker-0:2,worker-1:2"):
        hosts.parse_hosts_and_slots("a:2,b")


def test_functions_in_threads(capsys):
    done, go, stop = threading.Event(), threading.Event(), threading.Event()
    threads.in_thread(done.set).join(60)
    assert done.is_set()
    got = []
    waiting = threads.on_event(go, got.append, (1,), stop=stop, check_stop_interval_s=0.01)
    go.set()
    waiting.join(60)
    assert got == [1]
    waiting = threads.on_event(threading.Event(), got.append, (2,), stop=stop, check_stop_interval_s=0.01)
    stop.set()
    waiting.join(60)
    assert got == [1]
    threads.in_thread(lambda: 1 / 0).join(60)
    assert "ZeroDivisionError" in capsys.readouterr().err
    threads.in_thread(lambda: 1 / 0, silent=True).join(60)
    assert capsys.readouterr().err == ""
    assert threads.execute_function_multithreaded(pow, [(2, 3), (3, 2)]) == {0: 8, 1: 9}
    with pytest.raises(ValueError, match="tuple"):
        threads.in_thread(print, args="x")


def test_deadlines_keys_and_names():
    over = timeout.Timeout(-1, "Too late for {activity}.")
    assert over.timed_out() and over.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match="Too late for tea. Timeout after -1 seconds."):
        over.check_time_out_for("tea")
    timeout.Timeout(1000, "").check_time_out_for("tea")
    key = secret.make_secret_key()
    assert secret.check_digest(key, b"m", secret.compute_digest(key, b"m"))
    assert not secret.check_digest(key, b"n", secret.compute_digest(key, b"m"))
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    assert env.is_exportable("PATH") and not env.is_exportable("OLDPWD") and not env.is_exportable("BASH_FUNC_x()")
    pytest.importorskip("cloudpickle")
    assert codec.loads_base64(codec.dumps_base64({"a": 1})) == {"a": 1}


def test_a_command_leaves_nothing_behind(tmp_path):
    out, err = io.StringIO(), io.StringIO()
    code = safe_shell_exec.execute("echo yes; echo no >&2; exit 3", stdout=out, stderr=err, index=5)
    assert (code, out.getvalue(), err.getvalue()) == (3, "[5]<stdout>:yes\n", "[5]<stderr>:no\n")
    safe_shell_exec.execute(f"sleep 1000 & echo $! > {tmp_path}/pid", stdout=out)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    stop = threading.Event()
    stop.set()
    assert safe_shell_exec.execute("sleep 1000", events=[stop]) == -15
    assert tiny_shell_exec.execute("echo yes; exit 4") == ("yes\n", 4)


# What scripts and other projects import of Horovod beside its functions, and what there is of it:
# True, or a piece of the sentence that says what to do instead.
IMPORTS = {
    "horovod": True,
    "horovod.common": True,
    "horovod.common.basics.HorovodBasics": True,
    "horovod.common.elastic.ObjectState": True,
    "horovod.common.exceptions.HostsUpdatedInterrupt": True,
    "horovod.common.process_sets.ProcessSet": True,
    "horovod.common.util.check_extension": True,
    "horovod.common.util.gloo_built": True,
    "horovod.common.gradient_aggregation": "use backward_passes_per_step",
    "horovod.torch.mpi_ops.allreduce_async_": True,
    "horovod.torch.compression.Compression": True,
    "horovod.torch.functions.broadcast_optimizer_state": True,
    "horovod.torch.optimizer.DistributedOptimizer": True,
    "horovod.torch.sync_batch_norm.SyncBatchNorm": True,
    "horovod.torch.elastic.sampler.ElasticSampler": True,
    "horovod.torch.elastic.state.TorchState": True,
    "horovod.torch.elastic.run": True,
    "horovod.torch.mpi_lib_v2": "use the functions of horovod.torch",
    "horovod.torch.mpi_lib": "use the functions of horovod.torch",
    "horovod.torch.mpi_lib_impl": "use the functions of horovod.torch",
    "horovod.runner.run": True,
    "horovod.runner.launch.run_commandline": True,
    "horovod.runner.launch.parse_args": True,
    "horovod.runner.util.threads.in_thread": True,
    "horovod.runner.common.util.codec.loads_base64": True,
    "horovod.runner.common.util.env.get_env_rank_and_size": True,
    "horovod.runner.common.util.host_hash.host_hash": True,
    "horovod.runner.common.util.hosts.get_host_assignments": True,
    "horovod.runner.common.util.safe_shell_exec.execute": True,
    "horovod.runner.common.util.secret.make_secret_key": True,
    "horovod.runner.common.util.timeout.Timeout": True,
    "horovod.runner.common.util.tiny_shell_exec.execute": True,
    "horovod.runner.common.util.address": "use Python's socket",
    "horovod.runner.common.util.config_parser": "horovodrun --config-file",
    "horovod.runner.common.util.network": "unpickle",
    "horovod.runner.common.util.settings.Settings": "to horovod.run() as arguments",
    "horovod.runner.common.service.task_service": "unpickle",
    "horovod.runner.common.service.compute_service": "unpickle",
    "horovod.runner.driver.driver_service": "start jobs with ruedarun",
    "horovod.runner.task.task_service": "start jobs with ruedarun",
    "horovod.runner.task_fn": "start jobs with ruedarun",
    "horovod.runner.run_task": "start jobs with ruedarun",
    "horovod.runner.http.http_server.RendezvousServer": "without an HTTP server",
    "horovod.runner.http.http_client": "without an HTTP server",
    "horovod.runner.elastic.driver": "horovodrun --host-discovery-script",
    "horovod.runner.elastic.discovery": "object with find_available_hosts_and_slots()",
    "horovod.runner.elastic.settings.ElasticSettings": "horovodrun --host-discovery-script",
    "horovod.runner.elastic.worker.HostUpdateResult": True,
    "horovod.runner.elastic.worker.WorkerNotificationService": "notification_manager in horovod.common.elastic",
    "horovod.runner.elastic.worker.WorkerNotificationClient": "notification_manager in horovod.common.elastic",
    "horovod.runner.gloo_run.gloo_run": "start jobs with ruedarun",
    "horovod.runner.mpi_run.is_open_mpi": "docs/launchers.md",
    "horovod.runner.js_run": "start jobs with ruedarun",
    "horovod.runner.util.cache": "leave it out",
    "horovod.runner.util.lsf.LSFUtils": "horovodrun -H or --hostfile",
    "horovod.runner.util.network": "use Python's socket",
    "horovod.runner.util.remote": "docs/hosts.md",
    "horovod.runner.util.streams": "os.pipe",
    "horovod.run.runner.run": "Horovod 0.20 made it horovod.runner",
    "horovod.run.common.util.secret": "Horovod 0.20 made it horovod.runner",
    "horovod.run.http.http_server": "Horovod 0.20 made it horovod.runner",
    "horovod.tensorflow.data.compute_service": "use tf.data, sharded by rank",
    "horovod._keras": "use horovod.keras",
    "horovod.mxnet": "MXNet is retired",
    "horovod.data.data_loader_base": "rueda.data reads and shares out",
}

# Modules of packages that need Ray or Spark.
OF_ENGINES = {
    "horovod.ray.RayExecutor": True,
    "horovod.ray.ElasticRayExecutor": True,
    "horovod.ray.runner.RayExecutor": True,
    "horovod.ray.elastic.ElasticRayExecutor": True,
    "horovod.ray.elastic_v2.RayHostDiscovery": True,
    "horovod.ray.worker.BaseHorovodWorker": True,
    "horovod.spark.run": True,
    "horovod.spark.runner.run": True,
    "horovod.spark.torch": "train with horovod.spark.run(fn)",
    "horovod.spark.keras.KerasEstimator": "train with horovod.spark.run(fn)",
    "horovod.spark.common.store": "train with horovod.spark.run(fn)",
    "horovod.spark.driver": "start jobs with ruedarun",
    "horovod.spark.conf": "SparkSession.builder.config",
    "horovod.ray.strategy": "num_hosts and num_workers_per_host",
    "horovod.ray.driver_service": "start jobs with ruedarun",
    "horovod.ray.ray_logger.log": True,
}
for needed in ("pyspark", "ray"):
    if importlib.util.find_spec(needed):
        prefix = "horovod." + needed.removeprefix("py")
        IMPORTS.update({name: says for name, says in OF_ENGINES.items() if name.startswith(prefix)})

LOOK = """
import importlib, json, sys

def look(name):
    found, parts = importlib.import_module("horovod"), name.split(".")
    for at in range(1, len(parts)):
        try:
            found = importlib.import_module(".".join(parts[: at + 1]))
        except ModuleNotFoundError as error:
            if error.name != ".".join(parts[: at + 1]) or not hasattr(found, parts[at]):
                raise
            found = getattr(found, parts[at])
    return True

def said(name):
    try:
        return look(name)
    except ImportError as error:
        return f"{type(error).__name__} of {error.name}: {error}"

print(json.dumps({name: said(name) for name in json.load(sys.stdin)}))
import horovod
horovod.run  # still the function
from horovod import run
"""


def test_every_module_works_or_says_in_one_sentence_what_to_do():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([horovod.path(), str(PACKAGE)])}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], input=json.dumps(list(IMPORTS)), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name, said in json.loads(done.stdout).items():
        if IMPORTS[name] is True:
            assert said is True, name
        else:
            assert said is not True, name
            assert said.startswith("ImportError of horovod.") and IMPORTS[name] in said, (name, said)
            assert "\n" not in said and len(said) < 300, said
