"""From the rounds' answers to ratios, per state of the machine, and to tables. Pure."""

import statistics
from typing import Dict, List, Optional, Tuple

from .rows import IN_TURNS, LIMIT, ROWS, Row, Target, has_cores

STATES = ("NEAR", "FAR", "mixed", "all")
# Published measurement of Horovod's master branch against Debian's PyTorch 1.13 on two cores, blocking allreduce_, medians;
# shown where Horovod cannot be built here.
HOROVOD_ELSEWHERE = """Horovod was not measured in this run. Measured elsewhere on two cores (**not the same run**):

| | 4 B | 64 KB | 1 MB | 16 MB | 64 MB | ResNet-50's gradients |
|---|---|---|---|---|---|---|
| Gloo, 2 ranks, cycle 1 ms | 1070 us | 1076 us | 1160 us | 12.9 ms | 59.7 ms | 125 ms |
| Gloo, 2 ranks, cycle 0.1 ms | 313 us | 471 us | 742 us | 17.5 ms | 71 ms | 114 ms |
| Open MPI, 2 ranks, cycle 1 ms | 1070 us | 1069 us | 1070 us | 4.7 ms | 32.9 ms | 68 ms |
"""


def merged_state(first: dict, second: dict) -> str:
    return first["state"] if first["state"] == second["state"] else "mixed"


def answer(round_: dict, program: str, ranks: int, case: str) -> dict:
    """A program's row of this round; has "unavailable" when there is no figure that counts."""
    row = round_.get(f"{program}@{ranks}", {}).get(case, {"unavailable": "not run"})
    return {"unavailable": "WRONG RESULT"} if row.get("wrong") else row


def peer_answer(round_: dict, row: Row, peer: str, ranks: int, case: str) -> dict:
    program = row.subject if peer in (LIMIT, IN_TURNS) else peer
    found = answer(round_, program, ranks, row.peer_cases.get(case, case))
    if "unavailable" in found and case in row.fallback:
        found = answer(round_, program, ranks, row.fallback[case])
    return found


class Line:
    """One case against one peer (or the best of several): ratios of all rounds, by state."""

    def __init__(self, letter: str, ranks: int, case: str, peers: Tuple[str, ...]):
        self.letter, self.ranks, self.case, self.peers = letter, ranks, case, peers
        self.ratios: Dict[str, List[float]] = {state: [] for state in STATES}
        self.own: List[float] = []
        self.theirs: List[float] = []
        self.manner, self.why = "", ""

    def add(self, round_: dict, row: Row) -> None:
        own = answer(round_, row.subject, self.ranks, self.case)
        theirs = [peer_answer(round_, row, peer, self.ranks, self.case) for peer in self.peers]
        usable = [each for each in theirs if "unavailable" not in each]
        if "unavailable" in own:
            self.why = "rueda: " + own["unavailable"]
            return
        self.manner = own.get("manner", "")
        self.own.append(own["us"])
        if not usable:
            self.why = theirs[0]["unavailable"] if theirs else ""
            return
        best = min(usable, key=lambda each: each["us"])
        self.theirs.append(best["us"])
        for state in (merged_state(own, best), "all"):
            self.ratios.setdefault(state, []).append(best["us"] / own["us"])

    def text(self, state: str) -> str:
        ratios = self.ratios.get(state)
        if not ratios:
            return "-"
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}, n={len(ratios)})"


def lines_of(letter: str, rounds: List[dict]) -> List[Line]:
    row = ROWS[letter]
    lines = [Line(letter, ranks, case, (peer,)) for ranks in row.ranks for case in row.cases for peer in row.peers
             if letter != "K" and has_cores(peer, ranks)]
    for line in lines:
        for round_ in rounds:
            line.add(round_, row)
    return lines


def verdicts(letter: str, rounds: List[dict]) -> List[Tuple[str, str, str]]:
    """(what, target, met or not) of each case that has a target."""
    row, found = ROWS[letter], []
    for target in row.targets:
        for ranks in row.ranks:
            for case in row.cases:
                if not target.cases or case.endswith(target.cases):
                    found.append(_verdict(letter, row, target, ranks, case, rounds))
    return found


def _verdict(letter: str, row: Row, target: Target, ranks: int, case: str, rounds: List[dict]) -> Tuple[str, str, str]:
    what = f"{letter} {case}, {ranks} ranks"
    if target.at_most:
        values = [each.get("ratio", each.get("us")) for each in (answer(r, row.subject, ranks, case) for r in rounds)
                  if "unavailable" not in each]
        if not values:
            return what, f"at most {target.near:g}", "not measured"
        middle = statistics.median(values)
        return (what, f"at most {target.near:g}",
                f"{middle:g} ({min(values):g}-{max(values):g}): {'met' if middle <= target.near else 'NOT MET'}")
    line = Line(letter, ranks, case, tuple(p for p in target.peers if has_cores(p, ranks)))
    for round_ in rounds:
        line.add(round_, row)
    wanted = f"{target.near:g}x NEAR, {target.far:g}x FAR against the best of {', '.join(line.peers)}"
    if not line.ratios["all"]:
        return what, wanted, "not measured: " + line.why
    if row.needs_persistent and line.manner != "persistent":
        return what, wanted, f"not available: persistent requests (all, called: {statistics.median(line.ratios['all']):.2f})"
    words = []
    for state, least in (("NEAR", target.near), ("FAR", target.far)):
        if line.ratios[state]:
            middle = statistics.median(line.ratios[state])
            words.append(f"{state} {middle:.2f}: {'met' if middle >= least else 'NOT MET'}")
    if not words:
        words = [f"all {statistics.median(line.ratios['all']):.2f}: the machine's state changed, not judged"]
    return what, wanted, "; ".join(words)


def _microseconds(values: List[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def markdown_of(letters: List[str], rounds: List[dict], head: Dict[str, object]) -> str:
    out = ["Ratio: peer's time / rueda's time in the same round; median (least-most, number of rounds). Above 1: rueda is "
           "faster. Row G: share of the memory's own speed.", ""]
    out += [f"- {key}: {value}" for key, value in head.items()]
    for letter in letters:
        row = ROWS[letter]
        out += ["", f"**{letter}. {row.title}**", ""]
        if letter == "K":
            out += _idle_table(row, rounds)
        else:
            out += ["| ranks | case | call | peer | rueda us | peer us | " + " | ".join(STATES) + " |", "|---" * 10 + "|"]
            for line in lines_of(letter, rounds):
                figures = ([line.text(state) for state in STATES] if line.theirs
                           else [f"not available: {line.why}", "", "", ""])
                out.append("| " + " | ".join([str(line.ranks), line.case, line.manner or "-", line.peers[0],
                                              _microseconds(line.own), _microseconds(line.theirs), *figures]) + " |")
        out += ["", "| case | target | result |", "|---|---|---|"]
        out += ["| " + " | ".join(verdict) + " |" for verdict in verdicts(letter, rounds)]
    horovods = [a for r in rounds for key, answers in r.items() if key.startswith("horovod") for a in answers.values()]
    if not any("us" in each for each in horovods):
        out += ["", HOROVOD_ELSEWHERE]
    return "\n".join(out) + "\n"


def _idle_table(row: Row, rounds: List[dict]) -> List[str]:
    out = ["| program | time with it idle / without | voluntary context switches per second |", "|---|---|---|"]
    for program in (row.subject,) + row.peers:
        def middle(case: str, key: str) -> Optional[float]:
            values = [each[key] for each in (answer(r, program, 2, case) for r in rounds) if key in each]
            return statistics.median(values) if values else None

        ratio, switches = middle("idle:compute", "ratio"), middle("idle:switches", "us")
        shown = ["not available" if value is None else f"{value:g}" for value in (ratio, switches)]
        out.append(f"| {program} | {shown[0]} | {shown[1]} |")
    return out
