"""Agents started by a real sshd and a real Slurm (slurmctld, two slurmds, munge), all on this machine."""

import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

import own_sshd
import worlds
from own_sshd import free_port, wait_for
from test_hosts_launch import Job, PATIENCE

SLURM = {name: shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
         for name in ("munged", "slurmctld", "slurmd", "salloc", "srun", "sinfo")}


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """The folder of an sshd of our own (own_sshd.py), which hosts nodea and nodeb reach."""
    if own_sshd.why_not() is not None:
        pytest.skip(own_sshd.why_not())
    server = own_sshd.Server(tmp_path_factory.mktemp("ssh"))
    try:
        if not server.start():
            pytest.skip("sshd does not start here: " + (server.folder / "log").read_text().strip())
        yield server.folder
    finally:
        server.stop()


def test_ssh_starts_agents_without_a_shell_reading_our_words(ssh, tmp_path):
    folder = tmp_path / "a folder; with 'odd' $(letters)"
    folder.mkdir()
    job = Job("-np", 4, "-H", "nodea:2,nodeb:2", "--rsh-agent", f"ssh -F {ssh}/config", "-x", "MY_WORDS=a  b;$(c) 'd'",
              "sh", "-c", 'echo "$RUEDA_RANK $HOROVOD_HOSTNAME $MY_WORDS $PWD"', folder=folder)
    assert job.wait() == 0, job.text
    assert sorted(job.lines) == [f"[{r}]<stdout>: {r} node{'ab'[r // 2]} a  b;$(c) 'd' {folder}" for r in range(4)]


def test_one_ssh_per_host_and_none_of_it_left_after_a_death(ssh):
    job = Job("-np", 4, "-H", "nodea:2,nodeb:2", "--rsh-agent", f"ssh -F {ssh}/config", "--verbose", "sh", "-c",
              "echo up; sleep 300")
    job.wait_for("<stdout>: up", 4)
    starters = [int(pid) for pid in job.wait_for(r"is started by ssh \(pid (\d+)\)")]
    agents = [int(pid) for pid in job.wait_for(r"is here: agent pid (\d+)")]
    assert len(starters) == len(agents) == 2
    os.kill(job.process.pid, 9)
    assert job.wait() == -9
    wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in starters + agents))


def test_an_agent_that_was_stopped_does_not_outlive_its_job(ssh):
    """Its host's guard ends it once nobody is there any more who would continue it."""
    job = Job("-np", 2, "-H", "nodea:1,nodeb:1", "--rsh-agent", f"ssh -F {ssh}/config", "--verbose",
              "--silence-timeout", "2", "sh", "-c", "echo up; sleep 300")
    job.wait_for("<stdout>: up", 2)
    agent = int(job.wait_for(r"host nodeb is here: agent pid (\d+)")[0])
    [rank] = [int(pid) for pid in job.wait_for(r"rank 1 is pid (\d+) on nodeb")]
    os.kill(agent, signal.SIGSTOP)
    assert job.wait() == 137, job.text
    assert f"nodeb: ruedarun: the agent (pid {agent}), which looks after the ranks, has been stopped" in job.text
    wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in (agent, rank)))


def test_an_unknown_host_key_is_not_accepted(ssh):
    job = Job("-np", 2, "-H", "nodea:1,nodeb:1", "--rsh-agent", f"ssh -F {ssh}/stranger", "true")
    assert job.wait() == 69
    assert "Host key verification failed" in job.text
    assert re.search(r"host node[ab] cannot be started: ssh exited with code 255", job.text)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's commands reach a cluster of nodes n1 and n2."""
    missing = [name for name, path in SLURM.items() if path is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no Slurm here: {', '.join(missing) or 'its daemons need root'} (slurmctld slurmd slurm-client munge)")
    folder = tmp_path_factory.mktemp("slurm")
    for path in [folder, *folder.parents][:3]:
        path.chmod(0o755)
    (folder / "munge").mkdir(mode=0o700)
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o600)
    for name in ("sock", "state", "spool.n1", "spool.n2"):
        (folder / name).mkdir(mode=0o755)
    ports = [free_port() for _ in range(3)]
    nodes = "".join(f"NodeName=n{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[i]} CPUs=4 RealMemory=100\n"
                    for i in (1, 2))
    (folder / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost=localhost\nSlurmctldPort={ports[0]}\nSlurmUser=root\nAuthType=auth/munge\n"
        f"AuthInfo=socket={folder}/sock/munge\nCredType=cred/munge\nStateSaveLocation={folder}/state\n"
        f"SlurmdSpoolDir={folder}/spool.%n\nSlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/%n.pid\n"
        f"SlurmctldLogFile={folder}/ctld.log\nSlurmdLogFile={folder}/%n.log\nProctrackType=proctrack/pgid\n"
        f"TaskPlugin=task/none\nSelectType=select/cons_tres\nMpiDefault=none\nReturnToService=2\nSlurmdParameters=config_overrides\n{nodes}"
        "PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n")
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = []

    def start(*command):
        daemons.append(subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.DEVNULL,
                                        stderr=(folder / "daemons.log").open("a")))

    start(SLURM["munged"], "--foreground", "--force", f"--key-file={folder}/munge/key", f"--socket={folder}/sock/munge",
          f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed")
    try:
        wait_for((folder / "sock/munge").exists)
        start(SLURM["slurmctld"], "-D", "-f", folder / "slurm.conf")
        for node in ("n1", "n2"):
            start(SLURM["slurmd"], "-D", "-f", folder / "slurm.conf", "-N", node)
        idle = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        wait_for(lambda: subprocess.run(idle, env=env, capture_output=True, text=True).stdout.strip() == "2")
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def in_slurm(env, *arguments):
    return subprocess.run(["salloc", "-Q", "-N2", "--ntasks-per-node=2", worlds.ruedarun(), *map(str, arguments)], env=env,
                          capture_output=True, text=True, timeout=PATIENCE)


def test_inside_slurm_its_nodes_are_the_hosts_and_srun_starts_the_agents(slurm):
    done = in_slurm(slurm, "-np", 4, "sh", "-c", "echo $RUEDA_RANK $HOROVOD_HOSTNAME $RUEDA_CROSS_RANK")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: {r} n{1 + r // 2} {r // 2}" for r in range(4)]


def test_without_flags_the_allocations_slots_are_the_ranks(slurm):
    done = in_slurm(slurm, "sh", "-c", "echo $RUEDA_RANK $HOROVOD_HOSTNAME")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: {r} n{1 + r // 2}" for r in range(4)]
    assert done.stderr.splitlines()[0] == "ruedarun: 4 ranks on 2 hosts, found in SLURM_JOB_NODELIST n[1-2]"


def test_a_rank_that_fails_inside_slurm_is_named_with_its_node(slurm):
    done = in_slurm(slurm, "-np", 4, "sh", "-c", "if [ $RANK = 3 ]; then exit 5; fi; sleep 300")
    assert done.returncode == 5
    assert re.search(r"rank 3 \(pid \d+ on n2\) failed: exited with code 5", done.stderr), done.stderr
    wait_for(lambda: subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], env=slurm, capture_output=True,
                                    text=True).stdout.strip() == "2")


def test_more_ranks_than_slurm_gave_are_refused(slurm):
    done = in_slurm(slurm, "-np", 5, "true")
    assert done.returncode == 2
    assert "-np 5 needs 5 slots, SLURM_JOB_NODELIST n[1-2] has 4" in done.stderr
