"""The observer's verdicts on a job's logs. Pure: it believes no rank, and computes everything itself.

(a) the job ends in time; (b) whoever was lost is named, and nobody else; (c) an acknowledged step is there once, whole, the same on
all ranks; (d) nothing is left; (e) the exit code is 0.
"""

import re
from typing import NamedTuple

from churn_lib.arithmetic import Replay

SPARE_DESCRIPTORS = 4


class Step(NamedTuple):
    number: int
    members: tuple
    total: int
    digest: str


class Epoch(NamedTuple):
    number: int
    rank: int
    members: tuple
    descriptors: int
    threads: int


class Lost(NamedTuple):
    rank: int
    pid: int
    text: str


class Log:
    """What one member has said, in whole lines: a read may see a part of the last one."""

    def __init__(self, member, text):
        self.member, self.pid, self.end = member, -1, None
        self.steps, self.epochs, self.lost, self.removed, self.seen = [], [], [], False, []
        self.now = ""  # what it was about to do to itself, and where
        for line in text[: text.rfind("\n") + 1].splitlines():
            word, *rest = line.split()
            if word == "process":
                self.pid = int(rest[0])
            elif word == "member":
                self.seen.append((int(rest[0]), _members(rest[1])))
            elif word == "now":
                self.now = " ".join(rest)
            elif word == "epoch":
                self.epochs.append(Epoch(int(rest[0]), int(rest[1]), _members(rest[2]), int(rest[3]), int(rest[4])))
            elif word == "did":
                self.steps.append(Step(int(rest[0]), _members(rest[1]), int(rest[2]), rest[3]))
            elif word == "lost":
                self.lost.append(Lost(int(rest[0]), int(rest[1]), " ".join(rest[2:])))
            elif word == "removed":
                self.removed = True
            elif word == "end":
                self.end = (int(rest[0]), rest[1])


def _members(text):
    return tuple(int(member) for member in text.split(","))


def judge_steps(logs, size):
    """(c): failures. ``size``: numbers in a contribution."""
    failures, story = [], {}
    for log in logs:
        numbers = [step.number for step in log.steps]
        if any(later < earlier for earlier, later in zip(numbers, numbers[1:])):
            failures.append(f"(c) member {log.member} went back behind what it had acknowledged: steps {numbers}")
        for step in log.steps:
            first = story.setdefault(step.number, step)
            if step != first:
                failures.append(f"(c) member {log.member} tells of {step}, another of {first}")
    if sorted(story) != list(range(len(story))):
        missing = sorted(set(range(max(story, default=0))) - set(story))
        return [*failures, f"(c) nobody has acknowledged the steps {missing}, but later ones"]
    replay, last = Replay(size), ""
    for number in sorted(story):
        total, last = replay.step(number, story[number].members)
        if (total, last) != (story[number].total, story[number].digest):
            failures.append(f"(c) {story[number]}, but the observer has {total} {last}")
            break
    ends = {log.end for log in logs if log.end is not None}
    if not failures and ends != {(len(story), last)}:
        failures.append(f"(c) the ranks ended with {ends}, the observer with {(len(story), last)}")
    return failures


def judge_epochs(logs):
    """(c): failures: whoever is in an epoch agrees on its members, and computes with no others."""
    failures, epochs = [], {}
    for log in logs:
        for epoch in log.epochs:
            members = epochs.setdefault(epoch.number, epoch.members)
            if members != epoch.members or epoch.rank >= len(members) or members[epoch.rank] != log.member:
                failures.append(f"(c) member {log.member} is in {epoch}, another has {members}")
        numbers = [epoch.number for epoch in log.epochs]
        if any(later <= earlier for earlier, later in zip(numbers, numbers[1:])):
            failures.append(f"(c) member {log.member} was in the epochs {numbers}")
    for log in logs:
        for step in log.steps:
            if step.members not in epochs.values():
                failures.append(f"(c) member {log.member} made {step} with members that were never together")
    return failures


def judge_descriptors(logs):
    """(d): a rank that stays does not hold more and more."""
    failures = []
    for log in logs:
        first = {}
        for epoch in log.epochs[1:]:
            before = first.setdefault(len(epoch.members), epoch)
            for what, now, then in (("files", epoch.descriptors, before.descriptors), ("threads", epoch.threads, before.threads)):
                if now > then + SPARE_DESCRIPTORS:
                    text = f"{now} {what} in epoch {epoch.number}, {then} in {before.number}"
                    failures.append(f"(d) member {log.member} has {text}, with {len(epoch.members)} ranks in both")
    return failures


class Harm(NamedTuple):
    """What was done to a process. `member`: -1 where it had not said anything yet."""

    kind: str
    pid: int
    member: int
    causes: tuple  # one of these words is in what is said of its end
    was_in: bool  # an epoch, when it was done


def judge_culprits(logs, harms, output):
    """(b): failures."""
    failures = []
    harmed = {harm.pid: harm for harm in harms if harm.causes}
    members = {log.pid: log.member for log in logs}
    # Ranks that a member has had; it may have died before it could say so. Of an epoch that nobody came to be in, nothing is known.
    ranks, seen = {}, {number: members for log in logs for number, members in log.seen}
    for members_of_it in seen.values():
        for rank, member in enumerate(members_of_it):
            ranks.setdefault(member, set()).add(rank)
    all_known = len(seen) == max(seen, default=0)
    for log in logs:
        for lost in log.lost:
            if log.pid in harmed:
                continue  # what it did to itself
            # One that ended by itself has left in order, for all that its peers know: the error names it first.
            named = lost.pid if lost.pid >= 0 else next(map(int, re.findall(r"\(pid (\d+)", lost.text)), -1)
            if named not in harmed:
                failures.append(f"(b) member {log.member} was told: {lost.text[:300]}")
    told = "\n".join(line for line in output.splitlines() if line.startswith("ruedarun: rank "))  # several losses may share one
    for rank, how in re.findall(r"rank (\d+) on \S+ was lost: ([^;\n]*)", told):
        fits = [
            harm for pid, harm in harmed.items()
            if (not all_known or int(rank) in ranks.get(members.get(pid, -1), ())) and any(cause in how for cause in harm.causes)
        ]  # fmt: skip
        if not fits:
            failures.append(f"(b) ruedarun says that rank {rank} was lost: {how}")
    if any(harm.was_in for harm in harmed.values()) and not re.search(r"^ruedarun: rank \d+ on \S+ was lost", output, re.MULTILINE):
        failures.append("(b) ruedarun names nobody")
    return failures


def judge(logs, harms, code, output, size):
    failures = [] if code == 0 else [f"(e) exit code {code}"]
    failures += judge_steps(logs, size) + judge_epochs(logs)
    return failures + judge_culprits(logs, harms, output) + judge_descriptors(logs)
