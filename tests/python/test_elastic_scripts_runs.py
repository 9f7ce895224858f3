"""Horovod's elastic scripts under horovodrun and horovod.run: hosts that fail leave whole, and codes say how a job ended."""

import os
import subprocess
import sys

import pytest
from rueda.compat import horovod
from test_elastic_jobs import said_in
from test_elastic_scripts import SCRIPT, SHRINK, check, start
from worlds import launch

WAIT = "--min-np", "2", "--on-failure", "shrink", "--elastic-timeout", "1"
LIMIT = "--min-np", "1", "--reset-limit", "1"
FOUR = "1:hook:4", "2:synced:2", "3:synced:3", "4:synced:4"  # three of them while the others heal


def discovery_in(folder, hosts):
    """A script that prints what is in the file ``hosts``."""
    (folder / "hosts").write_text(hosts)
    script = folder / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
    script.chmod(0o700)
    return script


def horovodrun(ranks, *arguments):
    command = [sys.executable, "-m", "rueda.compat.horovodrun", "-np", ranks, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def test_every_address_of_the_loopback_is_a_host_of_this_machine(tmp_path):
    script = discovery_in(tmp_path, "127.0.0.2:1\n127.0.0.3:1\n")
    code, said = horovodrun(2, "--min-np", 2, "--host-discovery-script", script, "sh", "-c", "echo on $HOROVOD_HOSTNAME")
    assert code == 0, said
    assert {line.split(": ", 1)[1] for line in said.splitlines() if "<stdout>: " in line} == {"on 127.0.0.2", "on 127.0.0.3"}, said


@pytest.mark.parametrize(
    "fault",
    ["2:hook:4", *(pytest.param(f"2:{each}", marks=pytest.mark.slow) for each in ("commit:4", "forward:4:3", "step:4:raise"))],
)
def test_a_host_on_which_a_rank_fails_leaves_and_the_others_go_on(tmp_path, fault):
    script, features = discovery_in(tmp_path, "localhost:2\n127.0.0.1:1\n"), "amp,schedule,rescale,sets"
    (tmp_path / "said").mkdir()
    program = [sys.executable, SCRIPT, tmp_path / "said", 12, 2, features, fault]
    code, output = horovodrun(3, "--min-np", 2, "--host-discovery-script", script, *program)
    assert code == 0, output
    said = said_in(tmp_path / "said")
    sizes = check(said, 12, set(features.split(",")))
    assert sizes[:4] == [3] * 4 and sizes[-1] == 2 and len(said) == 3, (output, sizes)


RUN = """
import sys
from horovod_runs import train
import horovod

if __name__ == "__main__":
    results = horovod.run(train, args=sys.argv[1:2], num_proc=3, min_num_proc=2, host_discovery_script=sys.argv[2])
    print("results", results)
"""
TRAIN = f"""
import runpy, sys

def train(folder):
    sys.argv = ["script", folder, "12", "2", "amp,objects", "2:hook:4"]
    return runpy.run_path({str(SCRIPT)!r})["main"]()
"""


def test_run_gives_the_results_of_those_who_are_left(tmp_path):
    script, said = discovery_in(tmp_path, "localhost:2\n127.0.0.1:1\n"), tmp_path / "said"
    said.mkdir()
    (tmp_path / "program.py").write_text(RUN)
    (tmp_path / "horovod_runs.py").write_text(TRAIN)
    path = horovod.path(), str(SCRIPT.parent), os.environ.get("PYTHONPATH")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, tmp_path / "program.py", said, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "results [12, 12]", done.stdout + done.stderr
    check(said_in(said), 12, {"amp", "objects"})


@pytest.mark.parametrize(
    "ranks, size, faults, options, code, says",
    [
        (2, 0, ["0:reset:4:raise", "1:hook:4:7"], SHRINK, 7, "a fault of the script's own"),
        pytest.param(2, 0, ["0:hook:4:5", "1:hook:4:5"], SHRINK, 5, "exited with code 5", marks=pytest.mark.slow),
        pytest.param(2, 0, ["0:hook:4"], WAIT, 124, "--min-np is 2", marks=pytest.mark.slow),
        pytest.param(2, 2, ["1:hook:4"], LIMIT, 75, "exceeded limit: 1", marks=pytest.mark.slow),
        pytest.param(5, 0, FOUR, SHRINK, 75, "without a commit", marks=pytest.mark.slow),
    ],
    ids=["callback", "all exit", "too few", "reset limit", "no commit"],
)
def test_codes_say_how_a_job_ended(tmp_path, ranks, size, faults, options, code, says):
    found, output, said = start(tmp_path, ranks, 12, size, "amp", *faults, options=options)
    assert found == code and says in output, (found, output, said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "prints, told",
    [
        ("true", "--host-discovery-script to name hosts with room for -np 2"),
        ("echo localhost:1; echo 127.0.0.2:1", "1 of 2 hosts: 127.0.0.2 (ssh: "),
    ],
)
def test_a_job_that_waits_for_hosts_to_begin_with_says_so(prints, told):
    options = "--host-discovery-script", prints, "--elastic-timeout", "12", "--rsh-agent", "ssh -p 1"
    code, output = launch(2, ["true"], options=options)  # after ten seconds
    assert code == 124 and f"ruedarun: waiting for {told}" in output, (code, output)
