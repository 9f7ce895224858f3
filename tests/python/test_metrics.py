"""ruedarun --metrics: what Prometheus reads of a running job, and what it cannot do to it (docs/monitoring.md)."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import namespaces
import pytest
from expect import eventually
from prometheus_client.parser import text_string_to_metric_families
from test_hosts_launch import Job, over

NO_HOSTS = namespaces.why_not()
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")

# Each rank submits LIMIT times and then tells what it has counted.
RANK = """
import os, sys, time, numpy, rueda as hvd
hvd.init()
print("pid", hvd.rank(), os.getpid(), flush=True)
for step in range(LIMIT):
    hvd.allreduce(numpy.ones(1000, numpy.float32), name="gradient")
    hvd.allreduce(numpy.ones(1, numpy.float32), name="loss")
    if step == 20:
        print("up", flush=True)
found = hvd.stats()
print("counted", found["bytes"], found["operations"], flush=True)
time.sleep(60)
"""


def get(url):
    """Status and text."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(text):
    """Value by (name, sorted labels)."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_ranks(found, name):
    return {dict(labels)["rank"]: value for (one, labels), value in found.items() if one == name}


@contextlib.contextmanager
def running(tmp_path, *options, script=RANK, limit=10**9, size=2):
    """A job that serves metrics; gives it and its URL. It is killed in the end."""
    path = tmp_path / "rank.py"
    path.write_text(script.replace("LIMIT", str(limit)))
    job = Job("-np", size, "--metrics", "0", *options, sys.executable, path)
    try:
        url = job.wait_for(r"metrics: (http://127\.0\.0\.1:\d+)/metrics")[0]
        yield job, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGTERM)
        job.wait()


def test_metrics_are_what_the_ranks_submitted_and_never_fall(tmp_path):
    with running(tmp_path) as (job, url):
        job.wait_for(r"up", 2)
        before = {}
        for _ in range(5):
            status, text = get(url + "/metrics")
            assert status == 200
            found = samples(text)
            for key, value in before.items():
                if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                    assert found[key] >= value, key
            before = found
        assert before["rueda_world_size", ()] == 2 and before["rueda_ranks_lost_total", ()] == 0
        per_rank = [key for key in before if dict(key[1]).get("rank") == "0"]
        assert 30 <= len(per_rank) <= 40
        assert not any("gradient" in str(key) for key in before)
        assert get(url + "/healthz") == (200, "ok\n")
        assert get(url + "/other")[0] == 404


def test_sums_over_ranks_equal_what_was_submitted(tmp_path):
    with running(tmp_path, limit=100) as (job, url):
        counted = job.wait_for(r"counted (\d+) (\d+)", 2)
        found = samples(get(url + "/metrics")[1])
        assert set(counted) == {(str(100 * 4004), "200")}
        for name, place in (("rueda_bytes_total", 0), ("rueda_operations_total", 1)):
            assert sum(of_ranks(found, name).values()) == 2 * int(counted[0][place])
        assert of_ranks(found, "rueda_collective_seconds_count")["0"] == sum(
            value for (name, labels), value in found.items()
            if name == "rueda_batches_total" and dict(labels)["rank"] == "0"
        )


def test_a_file_for_node_exporter(tmp_path):
    path = tmp_path / "rueda.prom"
    with running(tmp_path, "--metrics-file", path) as (job, url):
        job.wait_for("up", 2)
        eventually(lambda: path.exists() and ("rueda_world_size", ()) in samples(path.read_text()))
        assert path.stat().st_mode & 0o777 == 0o644
        assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] in ([], ["rueda.prom.part"])


def test_a_lost_rank_is_told_while_the_others_end(tmp_path):
    script = RANK.replace("hvd.init()", "hvd.init()\nimport atexit\natexit.register(time.sleep, 20)", 1)
    with running(tmp_path, script=script) as (job, url):
        job.wait_for("up", 2)
        pid = dict(job.wait_for(r"pid (\d) (\d+)", 2))["1"]
        os.kill(int(pid), signal.SIGKILL)
        eventually(lambda: get(url + "/healthz")[0] == 503, 2)
        assert get(url + "/healthz")[1] == "rank 1 is lost: killed by signal 9 (SIGKILL)\n"
        found = samples(get(url + "/metrics")[1])
        assert found["rueda_ranks_lost_total", ()] == 1
        assert of_ranks(found, "rueda_rank_up") == {"0": 1, "1": 0}


def test_a_stall_is_told(tmp_path):
    script = RANK.replace("    hvd.allreduce(", "    hvd.rank() == 1 and time.sleep(60)\n    hvd.allreduce(", 1)
    with running(tmp_path, "--stall-check-warning-time-seconds", "1", script=script) as (job, url):
        job.wait_for("stalled", 1)
        eventually(lambda: get(url + "/healthz")[0] == 503, 2)
        assert get(url + "/healthz")[1].startswith("stalled: rank 0 waits for others")
        assert of_ranks(samples(get(url + "/metrics")[1]), "rueda_stalled_operations") == {"0": 1, "1": 0}


def test_garbage_many_connections_and_slow_readers_leave_the_job_alone(tmp_path):
    with running(tmp_path) as (job, url):
        job.wait_for("up", 2)
        port = int(url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]  # say nothing
        for connection in held[:30]:
            connection.sendall(os.urandom(2000))
        for connection in held[30:60]:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")  # and read nothing

        def steps():
            status, text = get(url + "/metrics")
            assert status == 200
            return of_ranks(samples(text), "rueda_step_seconds_count")["0"]

        for _ in range(3):
            before = steps()
            eventually(lambda before=before: steps() > before)
        for connection in held:
            connection.close()
        assert get(url + "/healthz") == (200, "ok\n")


def test_many_may_ask_at_once(tmp_path):
    with running(tmp_path) as (job, url):
        job.wait_for("up", 2)
        answers = []
        askers = [threading.Thread(target=lambda: answers.append(get(url + "/metrics")[0])) for _ in range(40)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert answers == [200] * 40


@pytest.mark.parametrize("wrong", ["9400x", "host:9400", "70000", "1.2.3.4"])
def test_an_address_that_is_none_starts_nothing(tmp_path, wrong):
    job = Job("-np", 1, "--metrics", wrong, sys.executable, "-c", "print('ran')")
    assert job.wait() == 2
    assert "metrics are served at [ADDRESS:]PORT" in job.text and "ran" not in job.text


def test_a_taken_port_starts_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = Job("-np", 2, "--metrics", port, sys.executable, "-c", "print('ran')")
        assert job.wait() != 0
    assert f"cannot serve metrics at 127.0.0.1:{port}" in job.text and "choose another port" in job.text
    assert "ran" not in job.text


def test_all_hosts_need_a_port():
    job = Job("-np", 1, "--metrics-all", sys.executable, "-c", "print('ran')")
    assert job.wait() == 2 and "--metrics PORT" in job.text


@pytest.fixture(scope="module")
def lab():
    if NO_HOSTS:
        pytest.skip(NO_HOSTS)
    hosts = namespaces.Lab(2, number=7)
    yield hosts
    hosts.close()


def test_each_host_serves_its_own_ranks(lab, tmp_path):
    path = tmp_path / "rank.py"
    path.write_text(RANK.replace("LIMIT", "1000000000"))
    job = Job(*over(lab), "--metrics", "0", sys.executable, path)
    try:
        urls = dict(job.wait_for(r"metrics of host (\S+): http://127\.0\.0\.1:(\d+)/metrics", 2))
        job.wait_for("up", 4)
        for number, host in enumerate(lab.hosts[:2]):
            asked = ["ip", "netns", "exec", host, sys.executable, "-c",
                     f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{urls[host]}/metrics').read().decode())"]
            found = samples(subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout)
            assert set(of_ranks(found, "rueda_bytes_total")) == {str(2 * number), str(2 * number + 1)}
            assert found["rueda_world_size", ()] == 4
    finally:
        os.killpg(job.process.pid, signal.SIGTERM)
        job.wait()


def test_all_hosts_at_one_place(lab, tmp_path):
    path = tmp_path / "rank.py"
    path.write_text(RANK.replace("LIMIT", "1000000000"))
    job = Job(*over(lab), "--metrics", "0", "--metrics-all", sys.executable, path)
    try:
        url = job.wait_for(r"metrics of all hosts: (http://127\.0\.0\.1:\d+)/metrics")[0]
        job.wait_for("up", 4)
        assert "metrics of host" not in job.text
        found = samples(get(url + "/metrics")[1])
        assert set(of_ranks(found, "rueda_bytes_total")) == set("0123")
        assert set(of_ranks(found, "rueda_shared_memory_bytes")) == set("0123")
        assert set(of_ranks(found, "rueda_local_size").values()) == {2}
        assert get(url + "/healthz") == (200, "ok\n")
    finally:
        os.killpg(job.process.pid, signal.SIGTERM)
        job.wait()


def test_variables_do_what_the_options_do(tmp_path, monkeypatch):
    path, file = tmp_path / "rank.py", tmp_path / "rueda.prom"
    path.write_text(RANK.replace("hvd.init()", "hvd.init()\nimport atexit\natexit.register(time.sleep, 20)", 1)
                    .replace("LIMIT", "1000000000"))
    for name, value in {"RUEDA_METRICS": "0", "RUEDA_METRICS_ALL": "1", "RUEDA_METRICS_FILE": str(file)}.items():
        monkeypatch.setenv(name, value)
    job = Job("-np", 2, sys.executable, path)
    try:
        url = job.wait_for(r"metrics[^:\n]*: (http://127\.0\.0\.1:\d+)/metrics")[0]
        job.wait_for("up", 2)
        assert set(of_ranks(samples(get(url + "/metrics")[1]), "rueda_bytes_total")) == set("01")
        eventually(file.exists)
        os.kill(int(dict(job.wait_for(r"pid (\d) (\d+)", 2))["1"]), signal.SIGKILL)
        eventually(lambda: get(url + "/healthz") == (503, "rank 1 is lost: killed by signal 9 (SIGKILL)\n"), 2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGTERM)
        job.wait()


def test_every_metric_of_the_dashboard_and_the_alerts_is_served(tmp_path):
    with open(os.path.join(ROOT, "deploy", "grafana.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            asked |= set(re.findall(r"\brueda_\w+", target["expr"]))
    assert len(asked) >= 10
    with open(os.path.join(ROOT, "docs", "monitoring.md"), encoding="utf-8") as page:
        for alert in re.findall(r"(?m)^  expr: (.+)", page.read()):
            asked |= set(re.findall(r"\brueda_\w+", alert))
    assert "rueda_local_size" in asked
    with running(tmp_path) as (job, url):
        job.wait_for("up", 2)
        served = {name for name, _ in samples(get(url + "/metrics")[1])}
    assert asked <= served, asked - served
