"""Hosts that come late, as in a cluster: names that DNS does not know yet, an sshd that does not listen
yet. And what a container's end asks of ruedarun: as process 1, 143 within the grace period."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

import own_sshd
import worlds
from test_hosts_launch import Job, PATIENCE, children_of, wait_until

pytestmark = pytest.mark.skipif(own_sshd.why_not() is not None, reason=str(own_sshd.why_not()))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


@pytest.fixture()
def server(tmp_path):
    """An sshd that is not started yet."""
    made = own_sshd.Server(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def missing(tmp_path_factory):
    """A job that waits for a host eleven seconds and is told of after ten."""
    server = own_sshd.Server(tmp_path_factory.mktemp("missing"))
    job = Job("-np", 1, "-H", "nodea:1", *by_ssh(server), "--start-timeout", "11", "true")
    yield job
    job.wait()
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def missing_early(request):
    worlds.begin_early(request, "missing")


def by_ssh(server, config="config"):
    return ["--rsh-agent", f"ssh -F {server.folder}/{config}"]


def test_an_sshd_that_starts_late_is_waited_for(server):
    job = Job("-np", 2, "-H", "nodea:1,nodeb:1", *by_ssh(server), "--verbose", "sh", "-c", "echo $HOROVOD_HOSTNAME")
    job.wait_for(r"host nodea is not there yet: ssh: connect to host .* Connection refused", 2)
    job.wait_for(r"host nodeb is not there yet")
    server.start()
    assert job.wait() == 0, job.text
    assert sorted(re.findall(r"<stdout>: (node\w)", job.text)) == ["nodea", "nodeb"]
    # Why is told when it is told who is missing, not with every try.
    assert not re.search(r"^ruedarun: node\w: ssh: connect", job.text, re.M), job.text


def test_a_host_that_is_connected_to_and_sends_no_agent_is_told_with_the_way_to_check(tmp_path):
    """As ssh does where large packets are lost: it has its connection and waits for an answer to its key exchange."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (tmp_path / "ssh").write_text(
            f"#!{sys.executable}\nimport signal, socket\n"
            f"connection = socket.create_connection({listener.getsockname()})\nsignal.pause()\n")
        (tmp_path / "ssh").chmod(0o755)
        job = Job("-np", 1, "-H", "nodea:1", "--rsh-agent", tmp_path / "ssh", "--start-timeout", "3", "true")
        assert job.wait() == 124, job.text
    assert re.search(r"waiting for 1 of 1 hosts: nodea \(it is connected to, and no agent has come from there: .*"
                     r"large packets are lost on the way \(MTU; try: ping -M do -s 1472 nodea\)", job.text), job.text


def test_a_refused_key_is_final(server):
    server.start()
    job = Job("-np", 1, "-H", "nodea:1", *by_ssh(server, "refused"), "--verbose", "true")
    assert job.wait() == 69
    assert "host nodea cannot be started: ssh exited with code 255" in job.text
    assert "Permission denied" in job.text
    assert len(re.findall("nodea is started by", job.text)) == 1, job.text


def test_sigterm_ends_the_waiting(server):
    job = Job("-np", 1, "-H", "nodea:1", *by_ssh(server), "--verbose", "true")
    job.wait_for("is not there yet")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.text
    assert "stopped before the ranks were started" in job.text


@needs_root
def test_a_name_that_comes_late_is_waited_for(server, tmp_path):
    server.start()
    names, switch = tmp_path / "hosts", tmp_path / "nsswitch.conf"
    names.write_text("127.0.0.1 localhost\n")
    switch.write_text("passwd: files\nhosts: files\n")
    inside = f"mount --bind {names} /etc/hosts && mount --bind {switch} /etc/nsswitch.conf && exec \"$@\""
    job = Job("-np", 1, "-H", "late.job.ns.svc:1", *by_ssh(server), "--verbose", "echo", "up",
              under=["unshare", "-m", "sh", "-c", inside, "sh"])
    job.wait_for(r"host late.job.ns.svc is not there yet: ssh: Could not resolve hostname", 2)
    names.write_text("127.0.0.1 localhost late.job.ns.svc\n")
    assert job.wait() == 0, job.text
    assert "[0]<stdout>: up" in job.text


def shim(server, folder):
    """A folder for PATH in which `ssh` uses the server's configuration, as an image's own would."""
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(f"#!/bin/sh\nexec {shutil.which('ssh')} -F {server.folder}/config \"$@\"\n")
    (folder / "bin/ssh").chmod(0o755)
    return f"{folder}/bin:{os.environ['PATH']}"


def test_the_launcher_of_an_mpijob_needs_no_flags(server, tmp_path):
    """The environment and the hostfile are the operator's; workers come late."""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node-worker-0.job.ns.svc slots=2\nnode-worker-1.job.ns.svc slots=2\n")
    script = tmp_path / "train.py"
    script.write_text("import os, rueda\nrueda.init()\n"
                      "print(rueda.size(), os.environ['HOROVOD_HOSTNAME'], os.environ.get('NVIDIA_VISIBLE_DEVICES'))\n"
                      "rueda.shutdown()\n")
    job = Job(sys.executable, script, env={
        "PATH": shim(server, tmp_path), "K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_orte_set_default_slots": "2",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10", "NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""})
    job.wait_for("4 ranks on 2 hosts, found in")
    server.start()
    assert job.wait() == 0, job.text
    hosts = [f"node-worker-{rank // 2}.job.ns.svc" for rank in range(4)]
    assert sorted(job.lines[1:]) == [f"[{r}]<stdout>: 4 {host} None" for r, host in enumerate(hosts)], job.text
    assert job.lines[0] == f"ruedarun: 4 ranks on 2 hosts, found in {hostfile} (OMPI_MCA_orte_default_hostfile)"


@needs_root
@pytest.mark.parametrize("stubborn", [False, True])
def test_sigterm_ends_a_container_with_143_within_the_grace_period(stubborn):
    """As process 1, to which the kernel sends only signals that it has asked for."""
    trap = "trap '' TERM; " if stubborn else ""
    job = Job("-np", 2, "--grace-period", "1", "--no-prefix", "sh", "-c", trap + "echo up; while :; do sleep 0.2; done",
              under=["unshare", "--pid", "--fork", "--mount-proc"])
    job.wait_for("up", 2)
    first = wait_until(lambda: children_of(job.process.pid))
    os.kill(first[0], signal.SIGTERM)
    assert job.wait() == 143, job.text


def test_a_worker_of_an_mpijob_is_told_what_it_is():
    done = subprocess.run([worlds.ruedarun(), "true"], capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, "K_MPI_JOB_ROLE": "worker"})
    assert done.returncode == 2
    assert "its command is sshd" in done.stderr


def test_who_is_missing_is_told_with_the_reason(missing):
    told = r"waiting for 1 of 1 hosts: nodea \(ssh: connect to host .* Connection refused\s*\)"
    missing.wait_for(r"ruedarun: " + told)  # after ten seconds
    assert missing.wait() == 124
    assert re.search(r"gave up after 11 s \(--start-timeout\) of " + told, missing.text), missing.text
    assert len(missing.lines) == 2, missing.text
