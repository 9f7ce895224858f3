"""One script under everybody's launcher: mpirun, mpiexec, torchrun, srun's variables, nothing at all."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = str(HERE / "launcher_script.py")
SECONDS = 120

OPENMPI = "mpirun.openmpi"
MPICH = "mpiexec.mpich"


def clean(env):
    """This process's environment without what any launcher may have put there, and `env`."""
    ours = ("RUEDA_RANK", "RUEDA_SIZE", "RUEDA_JOB_ID", "RUEDA_AGENT_FD", "RUEDA_KEY_FD",
            "RUEDA_MEMBER")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*ours, "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        and not name.startswith(("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "HOROVOD_"))
    }
    return {**kept, **env}


def run(command, env=None, **options):
    """(exit code, output, reports by rank) of a launcher's command."""
    ended = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean(env or {}),
        timeout=SECONDS,
        **options,
    )
    return ended.returncode, ended.stdout, reports_in(ended.stdout)


def reports_in(output):
    lines = [line.split("REPORT ", 1)[1] for line in output.splitlines() if "REPORT " in line]
    return sorted(map(json.loads, lines), key=lambda report: report.get("rank", 0))


def check(reports, size, local=None):
    """Every rank of one world has seen all the others."""
    assert [report["rank"] for report in reports] == list(range(size))
    total = [float(size * i + sum(range(size))) for i in range(5)]
    for report in reports:
        assert report["size"] == size
        assert report["total"] == total
        assert report["everybody"] == list(range(size))
        assert report["local"][1] == (size if local is None else local)


def need(program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (scripts/packages.txt)")


def openmpi(size, *command):
    need(OPENMPI)
    return [OPENMPI, "--allow-run-as-root", "--oversubscribe", "-np", size, *command]


def mpich(size, *command):
    need(MPICH)
    return [MPICH, "-n", size, *command]


def torchrun(size, *command):
    pytest.importorskip("torch")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*run, "--nproc-per-node", size, "--no-python", *command]


def start_ranks(environments, prefixes=None):
    """One process per environment, as a launcher would; (codes, outputs, reports)."""
    prefixes = prefixes or [[] for _ in environments]
    processes = [
        subprocess.Popen(
            [*prefix, sys.executable, SCRIPT],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean(env),
        )
        for env, prefix in zip(environments, prefixes)
    ]
    outputs = []
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs, reports_in("\n".join(outputs))


@pytest.mark.parametrize("launcher", [openmpi, mpich, torchrun])
def test_a_launcher_starts_the_script_as_it_is(launcher):
    env = {"RUEDA_TEST_ROUNDS": "2", "RUEDA_LOG_LEVEL": "debug"}
    code, output, reports = run(launcher(3, sys.executable, SCRIPT), env)
    assert code == 0, output
    check(reports, 3)
    source = {openmpi: "OMPI_COMM_WORLD_RANK=2", mpich: "PMI_RANK=2", torchrun: "RANK=2"}[launcher]
    assert f"rank 2 of 3, from {launcher_name(launcher)} ({source}" in output


def launcher_name(launcher):
    return {openmpi: "Open MPI's mpirun", mpich: "MPICH's or Intel's mpiexec"}.get(launcher, "torchrun")


def test_plain_python_is_a_job_of_one_rank():
    code, output, reports = run([sys.executable, SCRIPT])
    assert code == 0, output
    check(reports, 1)


def test_two_jobs_of_one_launcher_at_once_do_not_meet():
    """Same user, same host, same size: only the launcher's own name for the job differs."""
    for launcher in (openmpi, mpich):
        jobs = [
            subprocess.Popen(
                list(map(str, launcher(2, sys.executable, SCRIPT))),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=clean({}),
            )
            for _ in range(2)
        ]
        for job in jobs:
            output = job.communicate(timeout=SECONDS)[0]
            assert job.returncode == 0, output
            check(reports_in(output), 2)


def slurm(rank, size, step="0"):
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": step,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "node1",
    }


def deepspeed(rank, size):
    port = 20000 + os.getpid() % 10000
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "LOCAL_SIZE": str(size),
    }


@pytest.mark.parametrize("variables", [slurm, deepspeed])
def test_variables_of_srun_and_deepspeed(variables):
    codes, outputs, reports = start_ranks([variables(rank, 2) for rank in range(2)])
    assert codes == [0, 0], outputs
    check(reports, 2)


def test_a_batch_script_without_srun_is_warned_about():
    env = slurm(0, 4)
    del env["SLURM_STEP_ID"]
    code, output, reports = run([sys.executable, SCRIPT], env)
    assert code == 0, output
    check(reports, 1)
    assert "srun python" in output


def test_disagreeing_launchers_are_an_error():
    left_over = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}
    code, output, reports = run(mpich(4, sys.executable, SCRIPT), left_over)
    assert code != 0 and not reports
    assert "PMI_SIZE=4" in output and "WORLD_SIZE=2" in output and "env -u WORLD_SIZE" in output


def test_a_gap_is_an_error():
    code, output, reports = run([sys.executable, SCRIPT], {"WORLD_SIZE": "2", "MASTER_ADDR": "h"})
    assert code != 0 and not reports
    assert "RANK is not set" in output


def test_several_hosts_need_a_key():
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
    code, output, reports = run([sys.executable, SCRIPT], env)
    assert code != 0 and not reports
    assert "RUEDA_KEY_FILE" in output and "umask 077" in output


def by_hand(rank, size, folder, address):
    """Ranks that are told nothing but their number, where rank 0 is, and the key."""
    key = folder / "key"
    if not key.exists():
        key.touch(0o600)
        key.write_text("the secret of one test run")
    return {
        "RUEDA_RANK": str(rank),
        "RUEDA_SIZE": str(size),
        "RUEDA_RENDEZVOUS": address,
        "RUEDA_KEY_FILE": str(key),
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_ranks_started_by_hand_meet_at_an_address(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    codes, outputs, reports = start_ranks([by_hand(r, 3, tmp_path, address) for r in range(3)])
    assert codes == [0, 0, 0], outputs
    check(reports, 3)


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them; names and addresses."""
    names = [f"rt{os.getpid()}{letter}" for letter in "ab"]
    addresses = ["10.231.7.1", "10.231.7.2"]

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    made = [ip("netns", "add", name) for name in names]
    try:
        if shutil.which("ip") is None or any(done.returncode for done in made):
            pytest.skip("no network namespaces here")
        ends = ("link", "add", names[0], "netns", names[0], "type", "veth")
        assert ip(*ends, "peer", "name", names[1], "netns", names[1]).returncode == 0
        for name, address in zip(names, addresses):
            for words in (("addr", "add", address + "/24", "dev", name), ("link", "set", name, "up")):
                assert ip("-n", name, *words).returncode == 0
            assert ip("-n", name, "link", "set", "lo", "up").returncode == 0
        yield names, addresses
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.fixture
def own_hosts_files(two_hosts):
    """writes(namespace, text): the /etc/hosts that programs started by ip netns exec see."""
    folders = []

    def write(namespace, text):
        folder = pathlib.Path("/etc/netns", namespace)
        folder.mkdir(parents=True, exist_ok=True)
        folders.append(folder)
        (folder / "hosts").write_text(text)

    yield write
    for folder in folders:
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        folders[0].parent.rmdir()  # only if it is empty


def test_rank_0s_name_is_a_loopback_address_at_home(two_hosts, own_hosts_files, tmp_path):
    """As Debian's installer leaves it: a host calls itself 127.0.1.1, others know its real address."""
    names, addresses = two_hosts
    own_hosts_files(names[0], f"127.0.0.1 localhost\n127.0.1.1 nodea {socket.gethostname()}\n")
    own_hosts_files(names[1], f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n{addresses[0]} nodea\n")
    key = by_hand(0, 2, tmp_path, "")["RUEDA_KEY_FILE"]
    environments = [
        {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "nodea",
         "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "RUEDA_KEY_FILE": key}
        for rank in range(2)
    ]  # fmt: skip
    prefixes = [["ip", "netns", "exec", name] for name in names]
    codes, outputs, reports = start_ranks(environments, prefixes)
    assert codes == [0, 0], outputs
    check(reports, 2, local=1)
    assert all(report["tcp"] > 0 for report in reports)


def test_torchruns_variables_on_two_hosts(two_hosts, tmp_path):
    """Rank 0's port is the launcher's own, and nobody said which address to use."""
    names, addresses = two_hosts
    key = by_hand(0, 4, tmp_path, "")["RUEDA_KEY_FILE"]
    environments, prefixes = [], []
    for rank in range(4):
        environments.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": "4",
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": addresses[0],
                "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": "none",
                "RUEDA_KEY_FILE": key,
            }
        )
        prefixes.append(["ip", "netns", "exec", names[rank // 2]])
    codes, outputs, reports = start_ranks(environments, prefixes)
    assert codes == [0] * 4, outputs
    check(reports, 4, local=2)
    assert all(report["tcp"] > 0 for report in reports)
