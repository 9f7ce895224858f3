"""Elastic jobs over several hosts, which are network namespaces: ranks and hosts that are lost and found, and every step counted."""

import pathlib
import re
import shutil
import sys
import time

import pytest

import namespaces
from test_elastic_jobs import SCRIPT, check, said_in, sizes
from test_hosts_launch import PATIENCE, Job, wait_until_empty

WHY_NOT = namespaces.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed (nftables)")


@pytest.fixture(scope="module")
def lab():
    hosts = namespaces.Lab(3, number=2)
    yield hosts
    hosts.close()


def train(folder, options, steps, size, *faults):
    return Job(*options, "--rsh-agent", "ip netns exec", sys.executable, SCRIPT, folder, steps, size, *faults)


def wait_for_step(folder, member, step, job):
    end = time.monotonic() + PATIENCE
    while not any(line[:2] == ["did", str(step)] for line in said_in(folder).get(member, [])):
        assert time.monotonic() < end, job.text
        time.sleep(0.02)


def test_a_rank_that_is_killed_on_another_host_is_replaced_there(lab, tmp_path):
    one, two, _ = lab.hosts
    job = train(tmp_path, ["-np", 3, "-H", f"{one}:1,{two}:2", "--min-np", 2], 10, 3, "2:step:5")
    assert job.wait() == 0, job.text
    said = said_in(tmp_path)
    story = check(said, 10)
    assert sizes(said, 0) == sizes(said, 1) == [3, 2, 3] and sizes(said, 3) == [3]
    assert {int(size) for size, *_ in story.values()} == {2, 3}
    assert f"rank 2 on {two} was lost: " in job.text


def test_a_control_connection_that_breaks_is_made_again_and_no_rank_notices(lab, tmp_path):
    one, two, _ = lab.hosts
    folder = tmp_path / "said"
    folder.mkdir()
    options = ["-np", 2, "-H", f"{one}:1,{two}:1", "--min-np", 1, "--driver-timeout", 4]
    job = train(folder, options, 60, 2)
    wait_for_step(folder, 1, 5, job)
    # This machine's address has nobody but the controller: what the ranks have among them goes on.
    broken = namespaces.ip("netns", "exec", two, "ss", "-K", "-H", "-t", "dst", lab.address(98))
    assert "ESTAB" in broken, broken
    assert job.wait() == 0, job.text
    assert "lost" not in job.text, job.text
    said = said_in(folder)
    check(said, 60)
    assert sizes(said, 0) == sizes(said, 1) == [2]
    assert wait_until_empty(lab)


def list_anew(hosts, lines):
    pathlib.Path(f"{hosts}.new").write_text(lines)
    pathlib.Path(f"{hosts}.new").rename(hosts)


def steps_of(folder, member):
    return sum(line[0] == "did" for line in said_in(folder).get(member, []))


@needs_nft
@pytest.mark.parametrize(
    "ways", [("in", "out"), ("in",), pytest.param(("out",), marks=pytest.mark.slow)], ids="-".join
)
def test_a_control_connection_that_is_silent_for_a_while_costs_no_rank(lab, tmp_path, ways):
    one, two, three = lab.hosts
    hosts, folder = tmp_path / "hosts", tmp_path / "said"
    folder.mkdir()
    hosts.write_text(f"{one}:1\n{two}:1\n")
    job = train(folder, ["-np", 2, "--min-np", 1, "--host-discovery-script", f"cat {hosts}"], 10, 3)
    wait_for_step(folder, 1, 5, job)
    with lab.dropped(1, lab.address(98), ways):  # this machine has nobody but the controller
        end = time.monotonic() + 3.5  # a second and a half before it counts as the host's death
        job.wait_for(f"host {two} has given no sign of life for 1 s")
        begun = steps_of(folder, 1)
        time.sleep(end - time.monotonic())
        assert steps_of(folder, 1) > begun + 10, job.text
    job.wait_for(f"host {two} is back|host {two}: its connection had ended, and was made again")
    list_anew(hosts, f"{one}:1\n{two}:1\n{three}:1\n")  # which takes what the connection carries
    assert job.wait() == 0, job.text
    assert "lost" not in job.text and "no other was made" not in job.text, job.text
    said = said_in(folder)
    check(said, 10)
    assert sizes(said, 0) == sizes(said, 1) == [2, 3] and sizes(said, 2) == [3]
    assert wait_until_empty(lab)


# As ssh does: whoever ends this does not reach the agent that it has started.
FAR = """#!/bin/sh
exec 3<&0
setsid ip netns exec "$@" <&3 3<&- &
exec 3<&-
wait
"""


@needs_nft
@pytest.mark.parametrize(
    ("victim", "ways", "breaks"),
    [
        (0, ("in", "out"), False),
        pytest.param(1, ("in",), False, marks=pytest.mark.slow),
        pytest.param(2, ("out",), False, marks=pytest.mark.slow),
        pytest.param(1, ("in", "out"), True, marks=pytest.mark.slow),
    ],
    ids=["in-out", "in", "out", "broken"],
)
def test_a_control_connection_that_stays_silent_is_that_hosts_death_and_the_others_go_on(lab, tmp_path, victim, ways, breaks):
    """The ranks reach each other all the while: the one that is given up takes no part in what comes, and its own agent ends it."""
    lost = lab.hosts[victim]
    stays, leaves = sorted({0, 1, 2} - {victim})
    far, folder, listed = tmp_path / "far", tmp_path / "said", tmp_path / "hosts"
    folder.mkdir()
    far.write_text(FAR)
    far.chmod(0o700)
    listed.write_text("".join(f"{host}:1\n" for host in lab.hosts))
    options = ["-np", 3, "--host-discovery-script", f"cat {listed}", "--min-np", 1, "--silence-timeout", 2, "--driver-timeout", 4]
    job = Job(*options, "--rsh-agent", far, sys.executable, SCRIPT, folder, 10, 1)
    wait_for_step(folder, victim, 5, job)
    with lab.dropped(victim, lab.address(98), ways):  # this machine has nobody but the controller
        if breaks:  # of the agent it has ended then: it seeks another controller, and finds none
            namespaces.ip("netns", "exec", lost, "ss", "-K", "-H", "-t", "dst", lab.address(98))
        job.wait_for(f"rank {victim} on {lost} was lost: .*no sign of life for 2 s; 2 ranks go on from commit")
        end = time.monotonic() + PATIENCE
        while namespaces.ip("netns", "pids", lost).strip():  # nobody else can end them
            assert time.monotonic() < end, "the ranks that were given up are still there"
            time.sleep(0.02)
        assert job.process.poll() is None, job.text
        list_anew(listed, f"{lab.hosts[stays]}:1\n")  # with one rank the script ends
        assert job.wait() == 0, job.text
        assert wait_until_empty(lab)
    assert f"on {lab.hosts[stays]} was lost" not in job.text and f"on {lab.hosts[leaves]} was lost" not in job.text, job.text
    said = said_in(folder)
    check(said, 10)
    assert [sizes(said, member) for member in (victim, stays, leaves)] == [[3], [3, 2, 1], [3, 2]]


ENDS = """
import os, pathlib, sys, time
import rueda.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(2, 1)
state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), 0.1), step=0)
folder = pathlib.Path(sys.argv[1])


@hvd.elastic.run
def train(state):
    last = False
    while not last:
        last = bool(hvd.allreduce(torch.full((1,), float((folder / "last").exists())), op=hvd.Max).item())
        state.step += 1
        state.commit()
        if state.step == 1:
            print("begun", flush=True)
    return hvd.rank()


rank = train(state)
hvd.shutdown()
(folder / f"trained-{rank}").touch()
while rank == 0 and not (folder / "end").exists():
    time.sleep(0.01)
os._exit(0)
"""


@needs_nft
@pytest.mark.parametrize("ends", ["first", pytest.param("last", marks=pytest.mark.slow), "in time"])
def test_how_ranks_of_a_silent_host_ended_must_be_heard_for_a_success(lab, tmp_path, ends):
    """All have trained to the end; whether another's process has ended by then makes no difference."""
    one, two, _ = lab.hosts
    script = tmp_path / "train.py"
    script.write_text(ENDS)
    options = ["-np", 2, "-H", f"{one}:1,{two}:1", "--min-np", 1, "--silence-timeout", 3, "--verbose"]
    job = Job(*options, "--rsh-agent", "ip netns exec", sys.executable, script, tmp_path)
    job.wait_for("<stdout>: begun", 2)
    with lab.dropped(1, lab.address(98)):  # this machine has nobody but the controller
        (tmp_path / "last").touch()
        end = time.monotonic() + PATIENCE
        while not all((tmp_path / f"trained-{rank}").exists() for rank in (0, 1)):
            assert time.monotonic() < end, job.text
            time.sleep(0.02)
        if ends == "first":
            job.wait_for(f"host {two} .*is lost: no sign of life for 3 s")
            (tmp_path / "end").touch()
            assert job.wait() == 1, job.text
        elif ends == "last":
            (tmp_path / "end").touch()
            assert job.wait() == 1, job.text
        else:
            (tmp_path / "end").touch()
            job.wait_for("rank 0 .* exited with code 0")
    assert job.wait() == (0 if ends == "in time" else 1), job.text
    nobody = f"others have ended with code 0, and nobody has heard how rank 1 on {two} ended: the host is gone: no sign of life for 3 s"
    assert (nobody in job.text) == (ends != "in time"), job.text
    assert wait_until_empty(lab)


LEAVES = """
import os
import rueda.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
own = {"mine": torch.full((3,), float(os.environ["RUEDA_MEMBER"])), "at": 0}
state = hvd.elastic.TorchState(model, optimizer, step=0, local=own)


@hvd.elastic.run
def train(state):
    while hvd.size() > 1:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.at = state.step
        state.commit()
        print("step", state.step, "of", hvd.size(), flush=True)
    for orphan in state.orphans:
        print("orphan", orphan.member, *orphan.values["mine"].int().tolist(), orphan.values["at"], flush=True)


train(state)
"""


def test_hosts_that_leave_together_leave_what_each_of_their_ranks_has_for_itself(lab, tmp_path):
    hosts, script = tmp_path / "hosts", tmp_path / "train.py"
    hosts.write_text("".join(f"{host}:1\n" for host in lab.hosts))
    script.write_text(LEAVES)
    options = ["-np", 3, "--min-np", 1, "--host-discovery-script", f"cat {hosts}"]
    job = Job(*options, "--rsh-agent", "ip netns exec", sys.executable, script)
    job.wait_for(r"step \d+ of 3")
    list_anew(hosts, f"{lab.hosts[2]}:1\n")
    assert job.wait() == 0, job.text
    found = {int(member): list(map(int, rest.split())) for member, rest in re.findall(r"orphan (\d) (.*)", job.text)}
    # The mirror of 0 was 1, which left with it: one of them has made steps more, until 2 had all.
    assert sorted(found) == [0, 1] and all(mine[:3] == [member] * 3 for member, mine in found.items()), job.text
    assert found[0][3] != found[1][3], found


def test_a_host_that_is_cut_off_is_left_behind_and_one_that_is_found_joins(lab, tmp_path):
    one, two, three = lab.hosts
    hosts, folder = tmp_path / "hosts", tmp_path / "said"
    folder.mkdir()
    hosts.write_text(f"{one}:1\n{two}:1\n")
    options = ["-np", 2, "--min-np", 1, "--host-discovery-script", f"cat {hosts}", "--silence-timeout", 1]
    job = train(folder, options, 10, 3)
    wait_for_step(folder, 0, 5, job)
    namespaces.ip("link", "set", lab.cable(1), "down")
    try:
        job.wait_for(f"host {two} .*is lost: no sign of life for 1 s")
        job.wait_for("1 ranks? goe?s? on")
        list_anew(hosts, f"{one}:1\n{three}:2\n")
        assert job.wait() == 0, job.text
        said = said_in(folder)
        check(said, 10)
        assert sizes(said, 0)[:2] == [2, 1] and sizes(said, 0)[-1] == 3
        assert sizes(said, 1) == [2]  # in no epoch but the first
        assert wait_until_empty(lab)  # the ranks that were cut off have been ended by their own agent
    finally:
        namespaces.ip("link", "set", lab.cable(1), "up")
