"""scripts/churn: its observer finds what is planted, and a job whose ranks are harmed passes."""

import os
import pathlib
import subprocess
import sys

import pytest
from worlds import ruedarun

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from churn_lib.arithmetic import Replay  # noqa: E402
from churn_lib.judge import Harm, Log, judge  # noqa: E402

SIZE = 16
LOSS = "ruedarun: rank 1 on vm was lost: killed by signal 9 (SIGKILL); 1 ranks go on from commit 2\n"
KILLED = [Harm("kill", 101, 1, ("SIGKILL",), True)]


def story():
    """Lines by member: 0 and 1 make steps 0 to 2, 1 is killed, 0 goes on, 2 joins before step 4."""
    lines = {member: [f"process {100 + member}"] for member in range(3)}
    replay = Replay(SIZE)
    epochs = {0: (1, (0, 1)), 3: (2, (0,)), 4: (3, (0, 2))}
    for number in range(6):
        if number in epochs:
            epoch, members = epochs[number]
            for rank, member in enumerate(members):
                lines[member].append(f"member {epoch} {','.join(map(str, members))}")
                lines[member].append(f"epoch {epoch} {rank} {','.join(map(str, members))} 20 5")
        total, digest = replay.step(number, members)
        for member in members:
            lines[member].append(f"did {number} {','.join(map(str, members))} {total} {digest}")
        if number == 2:
            lines[0].append("lost 1 101 rank 1 (pid 101) was lost")
    for member in (0, 2):
        lines[member].append(f"end 6 {digest}")
    return lines


def verdicts(lines, harms=KILLED, code=0, output=LOSS):
    return judge([Log(member, "".join(f"{line}\n" for line in said)) for member, said in lines.items()], harms, code, output, SIZE)


def test_a_story_without_a_fault_passes():
    assert verdicts(story()) == []


def test_it_does_not_matter_whose_log_comes_first():
    lines = story()
    lines[2].insert(3, next(line for line in lines[0] if line.startswith("did 3 ")))  # a newcomer tells of what it begins with
    assert verdicts(lines) == verdicts(dict(reversed(lines.items()))) == []


def replaced(lines, member, index, old, new):
    assert old in lines[member][index]
    lines[member][index] = lines[member][index].replace(old, new)
    return lines


def without(lines, number):
    return {member: [line for line in said if not line.startswith(f"did {number} ")] for member, said in lines.items()}


def doubled(lines):
    """Step 3 is applied twice by all who make it, who agree."""
    replay = Replay(SIZE)
    for number, members in ((0, (0, 1)), (1, (0, 1)), (2, (0, 1)), (3, (0,)), (3, (0,))):
        _, digest = replay.step(number, members)
    words = lines[0][9].split()
    return replaced(lines, 0, 9, words[-1], digest)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (without(story(), 4), "(c) nobody has acknowledged the steps [4]"),
        (replaced(story(), 1, 4, "did 1 0,1 -", "did 1 0,1 "), "(c) member 1 tells of"),
        (replaced(story(), 1, 5, "did 2 0,1", "did 2 1"), "members that were never together"),
        (doubled(story()), "but the observer has"),
        (replaced(story(), 2, -1, "end 6", "end 5"), "(c) the ranks ended with"),
        (replaced(story(), 0, 8, "epoch 2", "epoch 1"), "(c) member 0 is in"),
        (replaced(story(), 0, 6, "lost 1 101", "lost 2 102"), "(b) member 0 was told"),
        (replaced(story(), 0, 11, " 20 5", " 30 5"), None),  # nothing to compare with
    ],
)
def test_what_is_planted_is_found(lines, what):
    found = verdicts(lines)
    assert (found == []) if what is None else any(what in each for each in found), found


def test_wrong_names_and_codes_are_found():
    assert any("(e) exit code 1" in each for each in verdicts(story(), code=1))
    assert any("names nobody" in each for each in verdicts(story(), output=""))
    other = LOSS.replace("rank 1", "rank 0")
    assert any("says that rank 0 was lost" in each for each in verdicts(story(), output=other))
    assert any("was told" in each for each in verdicts(story(), harms=[]))


def test_a_rank_that_left_is_named_in_the_text():
    text = "lost -1 -1 allreduce 'x': rank {} (pid {} on vm) has been shut down, and then rank 0 (pid 100 on vm)"
    assert verdicts(replaced(story(), 0, 6, "lost 1 101 rank 1 (pid 101) was lost", text.format(1, 101))) == []
    wrong = verdicts(replaced(story(), 0, 6, "lost 1 101 rank 1 (pid 101) was lost", text.format(2, 102)))
    assert any("(b) member 0 was told" in each for each in wrong), wrong


def test_descriptors_that_a_heal_leaves_are_found():
    lines = story()
    last = lines[0][-1]
    for epoch, count in ((4, 20), (5, 29)):
        lines[0].insert(-1, f"epoch {epoch} 0 0,2 {count} 5")
        lines[2].insert(-1, f"epoch {epoch} 1 0,2 20 5")
    assert lines[0][-1] == last and any("(d) member 0 has 29 files" in each for each in verdicts(lines))


def churn(*arguments, timeout):
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "churn"), *map(str, arguments)],
        env={**os.environ, "RUEDA_RUEDARUN": ruedarun()},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_job_whose_ranks_are_harmed_loses_no_step():
    said = churn("--jobs", 1, "--seed", 1, "--harms", 3, timeout=300)
    assert "1 jobs, " in said and ", 0 failed" in said, said


@pytest.mark.slow
def test_twenty_jobs_whose_ranks_are_harmed_lose_no_step():
    churn("--jobs", 20, "--seed", 100, timeout=3000)
