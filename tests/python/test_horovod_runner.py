"""``horovod.runner`` under rueda: the helpers that scripts import are there, what cannot be says why."""

import io
import os
import subprocess
import sys
import threading

import pytest
from rueda.compat import horovod

sys.path.insert(0, horovod.path())
try:
    from horovod.runner.common.util import codec, env, host_hash, hosts, safe_shell_exec, secret, timeout
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


@pytest.mark.parametrize("module, why", [
    ("horovod.runner.http.http_server", "without an HTTP server"),
    ("horovod.runner.common.service.task_service", "unpickle"),
    ("horovod.runner.elastic.driver", "does not change the number of ranks"),
])  # fmt: skip
def test_what_is_not_there_says_why(module, why):
    environment = {**os.environ, "PYTHONPATH": horovod.path()}
    command = [sys.executable, "-c", f"import {module}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: horovod.runner" in done.stderr and why in done.stderr, done
