"""ruedarun over several hosts, which are network namespaces: what ranks are told, how agents are started
and found, and who is named when something ends."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import namespaces
import worlds

PATIENCE = 90
TOOL = str(pathlib.Path(worlds.ruedarun()).with_name("rueda"))
WHY_NOT = namespaces.why_not()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
pytestmark = needs_hosts


@pytest.fixture(scope="module")
def lab():
    hosts = namespaces.Lab(3, number=1)
    yield hosts
    hosts.close()


class Job:
    """A ruedarun whose output is read while it runs. under: words of a command that becomes it."""

    def __init__(self, *arguments, env=None, folder=None, under=()):
        self.process = subprocess.Popen(
            [*under, worlds.ruedarun(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, **(env or {})}, cwd=folder, start_new_session=True)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    @property
    def text(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern, times=1):
        with self.changed:
            assert self.changed.wait_for(lambda: len(re.findall(pattern, self.text)) >= times, PATIENCE), self.text
        return re.findall(pattern, self.text)

    def wait(self):
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"the job has not ended:\n{self.text}")
        self.reader.join(PATIENCE)
        return code

    def agent_of(self, host):
        return int(self.wait_for(rf"host {host} is here: agent pid (\d+)")[0])


def over(lab, np=4, slots=2, count=2, options=()):
    hosts = ",".join(f"{host}:{slots}" for host in lab.hosts[:count])
    return ["-np", np, "-H", hosts, "--rsh-agent", "ip netns exec", *options]


def wait_until_empty(lab):
    end = time.monotonic() + PATIENCE
    while lab.processes() and time.monotonic() < end:
        time.sleep(0.02)
    return not lab.processes()


TELL = """import json, os
print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(("RUEDA_", "HOROVOD_", "MY_"))} |
                 {"folder": os.getcwd(), "net": os.stat("/proc/self/ns/net").st_ino}))"""


def test_ranks_are_told_their_places_and_the_users_environment(lab, tmp_path):
    job = Job(*over(lab), "--no-prefix", "-x", "MY_SET=7", sys.executable, "-c", TELL, folder=tmp_path,
              env={"MY_OWN": "1", "MY_TOKEN": "hidden"})
    assert job.wait() == 0, job.text
    told = sorted((json.loads(line) for line in job.lines), key=lambda entry: int(entry["RUEDA_RANK"]))
    place = [[int(entry[f"RUEDA_{name}"]) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK",
                                                       "CROSS_SIZE")] for entry in told]
    assert place == [[0, 4, 0, 2, 0, 2], [1, 4, 1, 2, 0, 2], [2, 4, 0, 2, 1, 2], [3, 4, 1, 2, 1, 2]]
    assert {entry["MY_OWN"] for entry in told} == {"1"}
    assert {entry["MY_SET"] for entry in told} == {"7"}
    assert not any("MY_TOKEN" in entry for entry in told)
    assert {entry["folder"] for entry in told} == {str(tmp_path)}
    assert [entry["HOROVOD_HOSTNAME"] for entry in told] == [lab.hosts[0]] * 2 + [lab.hosts[1]] * 2
    assert [entry["RUEDA_TCP_ADDRESS"] for entry in told] == [lab.address(0)] * 2 + [lab.address(1)] * 2
    assert len({entry["net"] for entry in told}) == 2


def test_a_hostfile_and_collectives_over_three_hosts(lab, tmp_path):
    script = tmp_path / "sum.py"
    script.write_text("import numpy, rueda\nrueda.init()\nimport rueda.numpy as hvd\n"
                      "out = hvd.allreduce(numpy.full(70000, rueda.rank() + 1.0), op=hvd.Sum)\n"
                      "print(rueda.size(), rueda.local_size(), rueda.cross_rank(), out.min(), out.max())\n"
                      "rueda.shutdown()\n")
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"# ours\n{lab.hosts[0]} slots=2\n{lab.hosts[1]}:1\n{lab.hosts[2]}\n")
    job = Job("-np", 4, "--hostfile", hostfile, "--rsh-agent", "ip netns exec", "--no-prefix", "--output-filename",
              tmp_path / "out", sys.executable, script)
    assert job.wait() == 0, job.text
    assert sorted(job.lines) == ["4 1 1 10.0 10.0", "4 1 2 10.0 10.0", "4 2 0 10.0 10.0", "4 2 0 10.0 10.0"]
    assert (tmp_path / "out/rank.3/stdout").read_text() == "4 1 2 10.0 10.0\n"


def test_ranks_are_bound_on_every_host(lab):
    first, *_, last = cpus = sorted(os.sched_getaffinity(0)) * 2
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    job = Job(*over(lab), "--no-prefix", "--bind", f"{first}:{last}", sys.executable, "-c", show)
    assert job.wait() == 0, job.text
    assert sorted(job.lines) == sorted([str([first]), str([last])] * 2)
    job = Job(*over(lab, np=2 * len(cpus), slots=len(cpus)), "--bind", "core", "true")
    assert job.wait() == 2, job.text
    assert f"for {len(cpus)} ranks; --bind none lets ranks share cores" in job.text


def test_lines_of_many_ranks_stay_whole_and_nothing_is_lost(lab):
    talk = "i=0; while [ $i -lt 3000 ]; do echo $RANK line $i of 3000; i=$((i+1)); done"
    job = Job(*over(lab, np=6, count=3), "sh", "-c", talk)
    assert job.wait() == 0
    assert sorted(job.lines) == sorted(f"[{r}]<stdout>: {r} line {i} of 3000" for r in range(6) for i in range(3000))


def test_no_secret_is_shown_and_nothing_listens_once_all_are_there(lab):
    job = Job(*over(lab), "--verbose", "sh", "-c", "echo up; sleep 300")
    job.wait_for("<stdout>: up", 4)
    below = [pid for pid in children_of(job.process.pid)]
    ours = set(lab.processes()) | {job.process.pid} | set(below) | {c for pid in below for c in children_of(pid)}
    for pid in ours:
        for name in ("cmdline", "environ"):
            text = pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
            assert b"BEGIN" not in text and b"rueda ticket" not in text
    listening = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout
    assert not [line for line in listening.splitlines() if any(f"pid={pid}," in line for pid in ours)]
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert wait_until_empty(lab)


def children_of(pid):
    out = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rsplit(")", 1)[1].split()[1]) == pid:
                out.append(int(entry.name))
    return out


SLEEP = "echo up; sleep 300"


def test_a_killed_rank_is_named_with_its_host(lab):
    job = Job(*over(lab), "--verbose", "sh", "-c", SLEEP)
    job.wait_for("<stdout>: up", 4)
    victim = int(job.wait_for(rf"rank 3 is pid (\d+) on {lab.hosts[1]}")[0])
    os.kill(victim, signal.SIGKILL)
    assert job.wait() == 137
    assert f"rank 3 (pid {victim} on {lab.hosts[1]}) failed: killed by signal 9 (SIGKILL)" in job.text
    assert "ranks 0-2 were stopped; exit code 137" in job.text
    assert wait_until_empty(lab)


def test_the_exit_code_of_a_failing_rank_is_ours(lab):
    job = Job(*over(lab), "sh", "-c", "if [ $RANK = 2 ]; then echo no such file >&2; exit 7; fi; sleep 300")
    assert job.wait() == 7
    assert re.search(rf"rank 2 \(pid \d+ on {lab.hosts[1]}\) failed: exited with code 7", job.text)
    assert "its last words: no such file" in job.text


def test_a_killed_agent_takes_its_host_with_it_and_is_named(lab):
    job = Job(*over(lab, np=6, count=3), "--verbose", "sh", "-c", SLEEP)
    job.wait_for("<stdout>: up", 6)
    agent = job.agent_of(lab.hosts[1])
    os.kill(agent, signal.SIGKILL)
    assert job.wait() == 137
    assert f"host {lab.hosts[1]} (agent pid {agent}) is lost" in job.text
    assert re.search(rf"rank 2 \(pid \d+ on {lab.hosts[1]}\) failed: lost with its host {lab.hosts[1]}", job.text)
    assert "ranks 0, 1, 4, 5 were stopped" in job.text
    assert wait_until_empty(lab)


def test_survivors_of_a_lost_host_hear_whom_they_lost(lab, tmp_path):
    script = tmp_path / "wait.py"
    script.write_text("import numpy, rueda\nrueda.init()\nimport rueda.numpy as hvd\n"
                      "for _ in range(3): hvd.allreduce(numpy.ones(4), name='warm')\nprint('up', flush=True)\n"
                      "if rueda.rank() < 2:\n"
                      "    try:\n        hvd.allreduce(numpy.ones(4), name='late')\n"
                      "    except Exception as error:\n        print('heard', error, flush=True)\n        raise\n"
                      "import time\ntime.sleep(300)\n")
    job = Job(*over(lab), "--verbose", sys.executable, script)
    job.wait_for("<stdout>: up", 4)
    # The controller knows of a host what its signs of life brought.
    name = job.wait_for(r"job ([0-9a-f]{16}),")[0]

    def told_of():
        counters = json.loads(tool("status", name, "--json") or "{}").get("counters", [])
        return {one["rank"] for one in counters if one["submitted"] >= 3}

    wait_until(lambda: told_of() >= {2, 3})
    os.kill(job.agent_of(lab.hosts[1]), signal.SIGKILL)
    assert job.wait() == 137
    assert len(re.findall(r"heard .*rank [23] .*; its last operation was allreduce 'warm' \(number 3\)", job.text)) == 2, job.text
    assert wait_until_empty(lab)


@pytest.mark.parametrize("who", ["driver", "controller"])
def test_a_killed_driver_or_controller_leaves_nothing_anywhere(lab, who):
    job = Job(*over(lab), "sh", "-c", "sleep 400 & " + SLEEP)
    job.wait_for("<stdout>: up", 4)
    victim = job.process.pid if who == "driver" else children_of(job.process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    assert job.wait() in (-9, 137)
    assert wait_until_empty(lab)


def test_a_host_that_is_cut_off_is_lost_after_the_silence_limit(lab):
    job = Job(*over(lab, options=["--silence-timeout", "3"]), "--verbose", "sh", "-c", SLEEP)
    job.wait_for("<stdout>: up", 4)
    namespaces.ip("link", "set", lab.cable(1), "down")
    try:
        job.wait_for(f"host {lab.hosts[1]} has given no sign of life for 1 s")
        assert job.wait() == 137
        assert re.search(rf"host {lab.hosts[1]} .* is lost: no sign of life for 3 s", job.text)
        assert wait_until_empty(lab)  # its agent has noticed as well
    finally:
        namespaces.ip("link", "set", lab.cable(1), "up")


def test_an_agent_that_is_cut_off_ends_its_own_ranks(lab, tmp_path):
    """Nobody else can: it was started by hand."""
    token = tmp_path / "token"
    job = Job("-np", 2, "-H", "first:1,second:1", "--token-file", token, "--silence-timeout", "3", "sh", "-c", SLEEP)
    job.wait_for(r"ruedarun join \S+:\d+ --token-file")
    joined = [subprocess.Popen(["ip", "netns", "exec", host, worlds.ruedarun(), "join", "--token-file", token, "--name",
                                name]) for host, name in zip(lab.hosts, ["first", "second"])]
    try:
        job.wait_for("<stdout>: up", 2)
        namespaces.ip("link", "set", lab.cable(1), "down")
        joined[1].wait(PATIENCE)
        assert job.wait() == 137
        assert "host second (agent pid" in job.text and "is lost: no sign of life for 3 s" in job.text
        assert wait_until_empty(lab)
    finally:
        namespaces.ip("link", "set", lab.cable(1), "up")
        for process in joined:
            process.kill()
            process.wait()


STEPS = """import os, sys, time
import numpy, rueda
rueda.init()
import rueda.numpy as hvd
step = 0
while not hvd.allreduce(numpy.full(1, float(os.path.exists(sys.argv[1]))), op=hvd.Max)[0]:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.01)
print("end", step, flush=True)
rueda.shutdown()
"""


def steps_told(job):
    return [[int(step) for step in re.findall(rf"\[{rank}\]<stdout>: step (\d+)", job.text)] for rank in range(2)]


def begin_steps(lab, tmp_path, *options):
    """A job of fixed size, with a rank on each of two hosts, until the file is there whose name it returns, too."""
    (tmp_path / "steps.py").write_text(STEPS)
    job = Job(*over(lab, np=2, slots=1, options=options), sys.executable, tmp_path / "steps.py", tmp_path / "end")
    job.wait_for("step 5\n", 2)
    return job, tmp_path / "end"


def ended_well(lab, job, end, more=20):
    """Steps go on; then the job ends, and each line has come once, in order."""
    begun = len(steps_told(job)[1])
    wait_until(lambda: len(steps_told(job)[1]) > begun + more)
    end.touch()
    assert job.wait() == 0, job.text
    assert "is lost" not in job.text, job.text
    for told in steps_told(job):
        assert told == list(range(1, len(told) + 1))
    return wait_until_empty(lab)


def test_a_control_connection_that_breaks_is_made_again_and_no_rank_of_a_fixed_job_notices(lab, tmp_path):
    job, end = begin_steps(lab, tmp_path)
    for times in (1, 2):
        # This machine's address has nobody but the controller: what the ranks have among them goes on.
        broken = namespaces.ip("netns", "exec", lab.hosts[1], "ss", "-K", "-H", "-t", "dst", lab.address(98))
        assert "ESTAB" in broken, broken
        job.wait_for(f"host {lab.hosts[1]}: its connection had ended, and was made again", times)
    assert ended_well(lab, job, end)


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft (nftables) is not installed")
def test_a_control_connection_that_is_silent_for_a_while_ends_no_fixed_job(lab, tmp_path):
    job, end = begin_steps(lab, tmp_path)
    with lab.dropped(1, lab.address(98)):
        job.wait_for(f"host {lab.hosts[1]} has given no sign of life for 1 s")
        # The agent's connection ends meanwhile: the controller has the only one that would go on.
        namespaces.ip("netns", "exec", lab.hosts[1], "ss", "-K", "-H", "-t", "dst", lab.address(98))
    job.wait_for(f"host {lab.hosts[1]} is back|host {lab.hosts[1]}: its connection had ended, and was made again")
    assert ended_well(lab, job, end)


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft (nftables) is not installed")
def test_an_agent_behind_a_black_hole_for_large_packets_ends_its_ranks_and_itself(lab, tmp_path):
    """It hears that the job is over, and cannot get rid of what it still has to send."""
    table, token, cable = f"{lab.prefix}t", tmp_path / "token", lab.cable(1)
    chains = "".join(
        f"add chain netdev {table} {way} {{ type filter hook {way} device {cable} priority 0 ; }}\n"
        f"add rule netdev {table} {way} meta length > 1000 drop\n" for way in ("ingress", "egress"))
    job = Job("-np", 2, "-H", "first:1,second:1", "--token-file", token, "--silence-timeout", "2", "sh", "-c",
              f"echo up; until [ -e {tmp_path}/cut ]; do sleep 0.1; done; while :; do seq 2000; sleep 0.2; done")
    job.wait_for(r"ruedarun join \S+:\d+ --token-file")
    joined = [subprocess.Popen(["ip", "netns", "exec", host, worlds.ruedarun(), "join", "--token-file", token, "--name",
                                name]) for host, name in zip(lab.hosts, ["first", "second"])]
    try:
        job.wait_for("<stdout>: up", 2)
        cut = subprocess.run(["nft", "-f", "-"], input=f"add table netdev {table}\n{chains}", text=True, capture_output=True)
        if cut.returncode != 0:
            pytest.skip(f"nft cannot drop packets here: {cut.stderr.strip()}")
        (tmp_path / "cut").touch()
        assert job.wait() == 137, job.text
        assert joined[1].wait(PATIENCE) == 137
        assert wait_until_empty(lab)
    finally:
        subprocess.run(["nft", "delete", "table", "netdev", table], capture_output=True)
        for process in joined:
            process.kill()
            process.wait()


def tool(*words, host=None):
    """The output of `rueda words`, here or on a host; None if it says no."""
    where = ["ip", "netns", "exec", host] if host else []
    done = subprocess.run([*where, TOOL, *words], capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout if done.returncode == 0 else None


def wait_until(look):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


WAIT_FOR_RANK_3 = """
import os, numpy as np, rueda as hvd
hvd.init()
for _ in range(200): hvd.allreduce(np.ones(1), name='g')
if hvd.rank() == 3: os.read(os.open('gate', os.O_RDONLY), 1)
hvd.allreduce(np.ones(2), name='h')
"""


def test_the_controller_shows_the_ranks_of_all_hosts_and_collects_their_recorders(lab, tmp_path):
    (tmp_path / "run.py").write_text(WAIT_FOR_RANK_3)
    os.mkfifo(tmp_path / "gate")
    job = Job(*over(lab), "--verbose", "--flight-recorder", "flight", sys.executable, "run.py", folder=tmp_path)
    name = job.wait_for(r"job ([0-9a-f]{16}),")[0]

    def status(host=None):
        said = tool("status", name, "--json", host=host)
        return json.loads(said) if said else {}

    def all_wait():
        found = status()
        waits = [(wait["name"], wait["in"]) for wait in found.get("waits", [])]
        return found if waits == [("allreduce.h", [0, 1, 2])] else None

    shown = wait_until(all_wait)
    assert [rank["operations"] for rank in shown["ranks"]] == [201, 201, 201, 200]
    assert [rank["life"] for rank in shown["ranks"]] == ["running"] * 4
    assert shown["waits"][0]["out"] == [3]
    assert [(host["name"], host["state"], host["ranks"]) for host in shown["hosts"]] == [
        (lab.hosts[0], "running", [0, 1]), (lab.hosts[1], "running", [2, 3])]
    # As signs of life tell, a second later.
    wait_until(lambda: [c["rank"] for c in status()["counters"] if c["oldest_wait_ms"] > 0] == [0, 1, 2])
    assert "allreduce 'h' float64[2] at run.py:6 in <module>: ranks 0-2 in, not in: rank 3" in tool("status", name)
    assert [rank["rank"] for rank in status(lab.hosts[1])["ranks"]] == [2, 3]  # elsewhere, of that host

    names = [f"flight.rank{rank}.bin" for rank in range(4)]
    job.process.send_signal(signal.SIGUSR2)
    job.wait_for("rueda explain flight")
    assert sorted(path.name for path in (tmp_path / "flight").iterdir()) == names
    for path in (tmp_path / "flight").iterdir():
        path.unlink()

    victim = int(job.wait_for(r"rank 3 is pid (\d+)")[0])
    os.kill(victim, signal.SIGKILL)
    assert job.wait() == 137, job.text
    assert sorted(path.name for path in (tmp_path / "flight").iterdir()) == names
    said = tool("explain", tmp_path / "flight")
    assert f"rank 3 (pid {victim} on" in said and "dead: killed by signal 9 (SIGKILL)" in said, said
    assert "200 operations" in said and "ranks 0-2 submitted allreduce 'h' float64[2]" in said, said
    assert wait_until_empty(lab)


def test_a_lost_hosts_recorders_are_told_as_missing(lab, tmp_path):
    job = Job(*over(lab), "--verbose", "--flight-recorder", tmp_path / "flight", "sh", "-c", SLEEP)
    job.wait_for("<stdout>: up", 4)
    os.kill(job.agent_of(lab.hosts[1]), signal.SIGKILL)
    assert job.wait() == 137
    assert "no flight recorder came from ranks 2, 3" in job.text
    assert {path.name for path in (tmp_path / "flight").iterdir()} == {"flight.rank0.bin", "flight.rank1.bin"}
    assert wait_until_empty(lab)


def test_a_rank_of_another_host_that_all_wait_for_is_explained(lab, tmp_path):
    script = tmp_path / "hang.py"
    script.write_text("import time, numpy as np, rueda as hvd\n"
                      "def elsewhere():\n    time.sleep(1000)\n"
                      "hvd.init()\nhvd.allreduce(np.ones(2), name='gradient')\n"
                      "if hvd.rank() == 3: elsewhere()\n"
                      "hvd.allreduce(np.ones((3, 2), np.float32), name='lonely')\n")
    job = Job(*over(lab), "--grace-period", "2", sys.executable, "hang.py", folder=tmp_path,
              env={"RUEDA_STALL_CHECK_TIME_SECONDS": "1", "RUEDA_STALL_SHUTDOWN_TIME_SECONDS": "6"})
    assert job.wait() not in (0, None), job.text
    assert "allreduce 'lonely' float32[3,2] at hang.py:7 in <module>" in job.text, job.text
    assert re.search(r"^ruedarun:   in: ranks 0-2", job.text, re.M), job.text
    assert re.search(r"^ruedarun:   not in: rank 3 \(pid \d+\) does something else: blocked in", job.text, re.M), job.text
    assert re.search(r"^ruedarun: .*in elsewhere", job.text, re.M), job.text  # Python's stack
    for rank in range(3):  # every waiting rank's error has it too
        own = [line for line in job.lines if line.startswith(f"[{rank}]<stderr>")]
        assert any("not in: rank 3" in line for line in own), job.text
        assert any("in elsewhere" in line for line in own), job.text
    assert wait_until_empty(lab)


LOSE_TWO = """
import numpy, rueda, rueda.numpy as hvd
rueda.init()
hvd.allreduce(numpy.ones(4), name='first')
print('up', flush=True)
try:
    while True: hvd.allreduce(numpy.ones(4), name='work')
except rueda.RankLostError as error:
    print('lost', error.rank, flush=True)
    raise
"""


@pytest.mark.parametrize("_round", range(3))
def test_two_ranks_that_die_together_on_two_hosts_are_one_verdict(lab, tmp_path, _round):
    script = tmp_path / "lose.py"
    script.write_text(LOSE_TWO)
    job = Job(*over(lab, np=6, slots=3), "--verbose", sys.executable, script)
    job.wait_for("<stdout>: up", 6)
    pids = {rank: int(job.wait_for(rf"rank {rank} is pid (\d+) on")[0]) for rank in (1, 4)}
    for which in (signal.SIGSTOP, signal.SIGKILL):  # so that neither sees the other's end
        for pid in pids.values():
            os.kill(pid, which)
    assert job.wait() == 137
    heard = re.findall(r"\[(\d)\]<stdout>: lost (\d)", job.text)
    assert {who for who, _ in heard} == {"0", "2", "3", "5"}, job.text
    assert len({rank for _, rank in heard}) == 1, job.text
    blamed = int(heard[0][1])
    assert f"rank {blamed} (pid {pids[blamed]} on " in job.lines[-3] + job.lines[-2] + job.lines[-1], job.text
    assert wait_until_empty(lab)


def test_a_drained_job_ends_at_the_same_step_on_all_hosts(lab, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import numpy, rueda, rueda.numpy as hvd\nrueda.init()\nprint('up', flush=True)\nstep = 0\n"
                      "while not rueda.should_stop():\n"
                      "    hvd.allreduce(numpy.ones(4), name='work')\n    step += 1\n"
                      "print('saved at', step, flush=True)\n")
    early = Job(*over(lab), "--verbose", "sh", "-c", SLEEP)
    early.wait_for("<stdout>: up", 4)
    name = early.wait_for(r"job ([0-9a-f]{16}),")[0]
    refused = subprocess.run([TOOL, "drain", name], capture_output=True, text=True)
    assert refused.returncode == 1 and "none of the 4 ranks listens" in refused.stderr
    early.process.send_signal(signal.SIGTERM)
    assert early.wait() == 143  # and nobody was ended by the question
    job = Job(*over(lab), "--verbose", sys.executable, script)
    job.wait_for("<stdout>: up", 4)
    name = job.wait_for(r"job ([0-9a-f]{16}),")[0]
    wait_until(lambda: tool("drain", name))
    assert job.wait() == 0, job.text
    steps = re.findall(r"saved at (\d+)", job.text)
    assert len(steps) == 4 and len(set(steps)) == 1, job.text


def test_users_signals_reach_the_ranks_of_all_hosts_and_stop_nothing(lab):
    job = Job(*over(lab), "sh", "-c", "trap 'echo heard; exit 0' USR1; echo up; while :; do sleep 0.1; done")
    job.wait_for("<stdout>: up", 4)
    job.process.send_signal(signal.SIGUSR1)
    assert job.wait() == 0, job.text
    assert len(re.findall("heard", job.text)) == 4


def test_ctrl_c_once_asks_and_twice_kills(lab):
    polite = Job(*over(lab), "sh", "-c", "trap 'echo stopping; exit 3' INT; echo up; sleep 300 & wait")
    polite.wait_for("<stdout>: up", 4)
    polite.process.send_signal(signal.SIGINT)
    assert polite.wait() == 130
    assert len(re.findall("stopping", polite.text)) == 4
    stubborn = Job(*over(lab), "--grace-period", "300", "sh", "-c",
                   "trap 'echo no' INT TERM; echo up; while :; do sleep 1; done")
    stubborn.wait_for("<stdout>: up", 4)
    stubborn.process.send_signal(signal.SIGINT)
    stubborn.wait_for("<stdout>: no", 4)
    stubborn.process.send_signal(signal.SIGINT)
    assert stubborn.wait() == 130
    assert wait_until_empty(lab)


def test_interfaces_that_no_host_has_are_told_with_those_there_are(lab):
    job = Job(*over(lab, options=["--network-interfaces", "10.255.0.0/16"]), "true")
    assert job.wait() == 69
    assert re.search(r"this machine: --network-interfaces 10.255.0.0/16 allows none of its addresses \(.*10\.213\.", job.text), job.text


def test_what_cannot_be_started_is_named(lab, tmp_path):
    missing = Job("-np", 2, "-H", f"{lab.hosts[0]}:1,nosuchhost:1", "--rsh-agent", "ip netns exec", "true")
    assert missing.wait() == 69
    assert 'host nosuchhost cannot be started: ip exited with code' in missing.text
    command = Job(*over(lab), "no-such-command")
    assert command.wait() == 127
    assert "command 'no-such-command' not found" in command.text
    slow = Job("-np", 2, "-H", f"{lab.hosts[0]}:1,{lab.hosts[1]}:1", "--start-timeout", "1", "--rsh-agent",
               f"sh -c 'test $0 = {lab.hosts[0]} && exec ip netns exec $0 $@; sleep 300'", "true")
    assert slow.wait() == 124
    assert re.search(rf"gave up after \d+ s \(--start-timeout\) of waiting for 1 of 2 hosts: {lab.hosts[1]}", slow.text)
    assert wait_until_empty(lab)


def test_hosts_join_by_a_token_file(lab, tmp_path):
    token = tmp_path / "token"
    job = Job("-np", 2, "-H", "first:1,second:1", "--token-file", token, "sh", "-c", "echo $HOROVOD_HOSTNAME is here")
    job.wait_for(r"ruedarun join \S+:\d+ --token-file")
    port = re.search(rf"controller {re.escape(lab.address(98))}:(\d+)", token.read_text())[1]
    assert token.stat().st_mode & 0o777 == 0o600
    open_to_all = tmp_path / "open"
    open_to_all.write_text(token.read_text())
    open_to_all.chmod(0o644)
    refused = subprocess.run([worlds.ruedarun(), "join", "--token-file", open_to_all], capture_output=True, text=True)
    assert refused.returncode == 2 and "chmod 600" in refused.stderr
    address = f"{lab.address(98)}:{port}"  # this machine's, on the bridge
    joined = [subprocess.Popen(["ip", "netns", "exec", host, worlds.ruedarun(), "join", *where, "--token-file", token,
                                "--name", name])
              for host, name, where in zip(lab.hosts, ["second", "first"], [[], [address]])]
    assert job.wait() == 0, job.text
    assert sorted(job.lines[1:]) == ["[0]<stdout>: first is here", "[1]<stdout>: second is here"]
    assert [process.wait(PATIENCE) for process in joined] == [0, 0]
    assert not token.exists()


def test_join_takes_the_named_place_alone_and_ends_as_the_job(lab, tmp_path):
    token = tmp_path / "token"
    job = Job("-np", 2, "-H", "first:1,second:1", "--token-file", token, "sh", "-c", "exit 3")
    job.wait_for(r"ruedarun join \S+:\d+ --token-file")

    def join(host, name):
        return subprocess.Popen(["ip", "netns", "exec", lab.hosts[host], worlds.ruedarun(), "join", "--token-file", token,
                                 "--name", name], stderr=subprocess.PIPE, text=True)

    unknown = join(0, "third")
    assert "the job has no host 'third'; its hosts are first and second" in unknown.communicate(timeout=PATIENCE)[1]
    assert unknown.returncode == 69
    twins = [join(0, "first"), join(1, "first")]
    refused = []
    while not refused:  # whichever came second
        refused = [process for process in twins if process.poll() is not None]
    assert "host first of this job has joined already" in refused[0].communicate()[1]
    taken = [process for process in twins if process is not refused[0]]
    joined = [*taken, join(1, "second")]
    assert job.wait() == 3, job.text
    told = [process.communicate(timeout=PATIENCE)[1] for process in joined]
    assert [process.returncode for process in joined] == [3, 3], told


def test_twin_bridges_and_dead_interfaces_are_not_taken(lab):
    """Every host has docker0 with one address, and a first interface that leads nowhere."""
    for i in range(2):
        lab.inside(i, "link", "add", "docker0", "type", "bridge")
        lab.inside(i, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        lab.inside(i, "link", "set", "docker0", "up")
        lab.inside(i, "link", "add", "aaa0", "type", "bridge")
        lab.inside(i, "addr", "add", f"192.168.77.{i + 1}/24", "dev", "aaa0")
        lab.inside(i, "link", "set", "aaa0", "up")
    try:
        job = Job(*over(lab), "--verbose", sys.executable, "-c", "import rueda; rueda.init(); rueda.shutdown()")
        assert job.wait() == 0, job.text
        for i in range(2):
            assert f"ranks on {lab.hosts[i]} use address {lab.address(i)}" in job.text
        only = Job(*over(lab), "--network-interfaces", "aaa", "true")
        assert only.wait() in (69, 124)
    finally:
        for i in range(2):
            lab.inside(i, "link", "del", "docker0")
            lab.inside(i, "link", "del", "aaa0")


def test_a_host_that_calls_itself_a_loopback_address_is_reached_by_its_own(lab, tmp_path):
    """Debian's 127.0.1.1: on every host the own name, and the name the job knows it by, lead nowhere else."""
    folders = [pathlib.Path("/etc/netns", host) for host in lab.hosts[:2]]
    try:
        for host, folder in zip(lab.hosts, folders):
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()} {host}\n")
        script = "import socket, rueda; rueda.init(); print(socket.gethostbyname(socket.gethostname()), rueda.local_size())"
        job = Job(*over(lab, np=2, slots=1), "--no-prefix", sys.executable, "-c", script)
        assert job.wait() == 0, job.text
        assert job.lines == ["127.0.1.1 1"] * 2
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def test_hosts_that_cannot_reach_each_other_get_the_table_of_tries(lab):
    """Each reaches the controller, but not the other."""
    bridge_ports = [lab.cable(0), lab.cable(1)]
    for port in bridge_ports:
        namespaces.ip("link", "set", port, "type", "bridge_slave", "isolated", "on")
    try:
        job = Job(*over(lab), "true")
        assert job.wait() == 69
        assert f"no address of host {lab.hosts[0]} can be reached by all other hosts; tried:" in job.text
        assert f"{lab.hosts[1]} -> {lab.address(0)}  no answer in 3000 ms" in job.text
        assert wait_until_empty(lab)
    finally:
        for port in bridge_ports:
            namespaces.ip("link", "set", port, "type", "bridge_slave", "isolated", "off")


def test_ipv6_alone_is_enough():
    hosts = namespaces.Lab(2, number=2, ipv6_only=True)
    try:
        job = Job(*over(hosts), "--verbose", sys.executable, "-c",
                  "import rueda, numpy; rueda.init(); import rueda.numpy as h; print(h.allreduce(numpy.ones(3), op=h.Sum))")
        assert job.wait() == 0, job.text
        assert len(re.findall(r"\[4\. 4\. 4\.\]", job.text)) == 4
        assert f"ranks on {hosts.hosts[1]} use address {hosts.address(1)}" in job.text
    finally:
        hosts.close()
