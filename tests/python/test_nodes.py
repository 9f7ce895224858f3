"""Nodes on each of which the same command runs, as Kubeflow's Trainer starts them: PET_* and a key file, no ssh.
They are network namespaces, and one is started after the other."""

import os
import re
import signal
import sys

import pytest

import namespaces
from test_hosts_launch import Job, wait_until_empty

WHY_NOT = namespaces.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture(scope="module")
def lab():
    hosts = namespaces.Lab(3, number=3)
    yield hosts
    hosts.close()


@pytest.fixture()
def key(tmp_path):
    return make_key(tmp_path / "key")


def make_key(path, text="0123456789abcdef0123456789abcdef"):
    path.write_text(text)
    path.chmod(0o600)
    return path


def node(lab, number, *command, key=None, nodes=2, ranks=2, under=(), **variables):
    env = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(ranks), "PET_NODE_RANK": str(number),
           "PET_MASTER_ADDR": lab.address(0), "PET_MASTER_PORT": "29411", **variables}
    if key is not None:
        env["RUEDA_KEY_FILE"] = str(key)
    return Job(*command, env=env, under=["ip", "netns", "exec", lab.hosts[number], *under])


def all_up(lab, key, nodes=2, command=("--verbose", "sh", "-c", "echo up; sleep 300")):
    jobs = [node(lab, number, *command, key=key, nodes=nodes) for number in range(nodes)]
    jobs[0].wait_for("<stdout>: up", 2 * nodes)
    return jobs


TELL = """import os, numpy, rueda
rueda.init()
import rueda.numpy as hvd
total = hvd.allreduce(numpy.ones(1000), op=hvd.Sum)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PET_NODE_RANK", "MY_TOKEN", "HOROVOD_HOSTNAME")
print(*(os.environ.get(name) for name in names), rueda.local_size(), int(total[0]))
rueda.shutdown()
"""


def test_nodes_are_one_job_whoever_comes_first(lab, key, tmp_path):
    (tmp_path / "train.py").write_text(TELL)
    command = [sys.executable, tmp_path / "train.py"]
    # RANK and WORLD_SIZE are the pod's, as the training operator sets them beside PET_*.
    late = [node(lab, n, *command, key=key, nodes=3, MY_TOKEN=f"of{n}", RANK=str(n), WORLD_SIZE="3") for n in (2, 1)]
    for job in late:
        job.wait_for("6 ranks on 3 nodes, found in PET_NNODES and PET_NPROC_PER_NODE")
    first = node(lab, 0, *command, key=key, nodes=3, MY_TOKEN="of0", RANK="0", WORLD_SIZE="3")
    assert first.wait() == 0, first.text
    assert [job.wait() for job in late] == [0, 0], [job.text for job in late]
    assert sorted(first.lines[1:]) == [
        f"[{r}]<stdout>: {r} {r % 2} 6 {lab.address(0)} 29411 {r // 2} of{r // 2} node{r // 2} 2 6" for r in range(6)]
    assert wait_until_empty(lab)


def test_a_node_alone_needs_no_key(lab):
    job = node(lab, 0, "--no-prefix", "sh", "-c", "echo $RUEDA_SIZE", nodes=1)
    assert job.wait() == 0, job.text
    assert sorted(job.lines) == ["2", "2", "ruedarun: 2 ranks here, found in PET_NNODES and PET_NPROC_PER_NODE"]


def test_several_nodes_without_a_key_are_refused_with_the_secrets_name(lab):
    job = node(lab, 1, "true")
    assert job.wait() == 2
    assert "RUEDA_KEY_FILE is not set" in job.text and "secret generic rueda-job-key" in job.text


def test_flags_win(lab):
    job = node(lab, 1, "-np", 1, "--no-prefix", "sh", "-c", "echo $RUEDA_SIZE")
    assert job.wait() == 0, job.text
    assert job.lines == ["1"]


@pytest.mark.parametrize("what", ["another key", "another number of ranks"])
def test_a_node_that_does_not_belong_to_the_job_is_refused(lab, key, tmp_path, what):
    first = node(lab, 0, "--verbose", "true", key=key)
    first.wait_for("the controller listens on")
    if what == "another key":
        stranger = node(lab, 1, "true", key=make_key(tmp_path / "other", "f" * 32))
    else:
        stranger = node(lab, 1, "true", key=key, ranks=3)
    assert stranger.wait() == 69, stranger.text
    assert "do not belong to one job" in stranger.text
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 143, first.text
    assert wait_until_empty(lab)


def test_sigterm_ends_a_node_that_waits(lab, key):
    alone = node(lab, 1, "--verbose", "true", key=key)
    alone.wait_for("this is node1; it asks node 0")
    alone.process.send_signal(signal.SIGTERM)
    assert alone.wait() == 143, alone.text
    # And one that has joined, and waits for the third.
    jobs = [node(lab, number, "--verbose", "true", key=key, nodes=3) for number in range(2)]
    jobs[0].wait_for("host node1 is here")
    jobs[1].process.send_signal(signal.SIGTERM)
    assert jobs[1].wait() == 143, jobs[1].text
    assert jobs[0].wait() == 69, jobs[0].text
    assert wait_until_empty(lab)


def test_sigterm_on_any_node_ends_the_job(lab, key):
    jobs = all_up(lab, key)
    jobs[1].process.send_signal(signal.SIGTERM)
    assert jobs[1].wait() == 143, jobs[1].text
    assert jobs[0].wait() not in (0, None), jobs[0].text
    assert wait_until_empty(lab)


def test_node_0_says_who_was_lost(lab, key):
    jobs = all_up(lab, key)
    os.kill(jobs[0].agent_of("node1"), signal.SIGKILL)
    assert jobs[0].wait() == 137, jobs[0].text
    assert re.search(r"rank 2 \(pid \d+ on node1\) failed: lost with its host node1", jobs[0].text), jobs[0].text
    assert jobs[1].wait() != 0
    assert wait_until_empty(lab)


def test_a_rank_that_fails_on_one_node_fails_every_nodes_command(lab, key):
    jobs = [node(lab, n, "sh", "-c", "if [ $RANK = 3 ]; then exit 7; fi; sleep 300", key=key) for n in range(2)]
    assert jobs[0].wait() == 7, jobs[0].text
    assert re.search(r"rank 3 \(pid \d+ on node1\) failed: exited with code 7", jobs[0].text)
    assert jobs[1].wait() != 0, jobs[1].text
    assert wait_until_empty(lab)


def test_without_root_a_mounted_secret_is_read(lab, key):
    """As Kubernetes mounts it for a pod with fsGroup: root's, for the pod's group to read."""
    nobody = 65534
    os.chown(key, 0, nobody)
    key.chmod(0o440)
    for folder in [key.parent, *key.parent.parents][:3]:
        folder.chmod(0o755)
    drop = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", "--no-new-privs"]
    jobs = [node(lab, n, "sh", "-c", "echo $(id -u) $RUEDA_SIZE", key=key, ranks=1, under=drop) for n in range(2)]
    assert [job.wait() for job in jobs] == [0, 0], [job.text for job in jobs]
    assert sorted(jobs[0].lines[1:]) == ["[0]<stdout>: 65534 2", "[1]<stdout>: 65534 2"], jobs[0].text
    key.chmod(0o444)
    refused = node(lab, 1, "true", key=key, under=drop)
    assert refused.wait() == 2
    assert "can be read by others" in refused.text


def test_a_root_that_can_only_be_read_is_enough(lab, key, tmp_path):
    """readOnlyRootFilesystem, without a /tmp of its own."""
    (tmp_path / "train.py").write_text(TELL)
    root = tmp_path / "root"
    root.mkdir()
    inside = f"mount --rbind / {root} && mount -o remount,bind,ro {root} && exec chroot {root} \"$@\""
    closed = ["unshare", "-m", "sh", "-c", inside, "sh"]
    command = ["sh", "-c", f"touch /tmp/written 2>/dev/null && exit 9; exec {sys.executable} {tmp_path}/train.py"]
    jobs = [node(lab, number, *command, key=key, under=closed) for number in range(2)]
    assert [job.wait() for job in jobs] == [0, 0], [job.text for job in jobs]
    assert len(re.findall(r" 2 4$", jobs[0].text, re.M)) == 4, jobs[0].text
