"""From the rounds of scripts/scaling to a table. Pure."""

import statistics
from typing import Dict, List

STATES = ("NEAR", "FAR", "mixed", "none", "all")
TITLES = {
    "data": "data (`DistributedOptimizer`)", "state": '`shard="state"`', "gradients": '`shard="gradients"`',
    "host": '`shard="gradients"`, `share="host"`', "parameters": '`shard="parameters"`', "sequence": "sequence (ring attention)",
}
MANNERS = ("strong", "weak")


def case_of(way: str, manner: str, size: str) -> str:
    return f"{way}:{manner}:{size}"


class Line:
    """One way on one number of ranks: its rate, and how many times that of the fewest ranks in the same round."""

    def __init__(self, ranks: int, fewest: int, case: str):
        self.ranks, self.fewest, self.case = ranks, fewest, case
        self.tokens, self.why = 0, "not run"
        self.rates: List[float] = []
        self.speedups: Dict[str, List[float]] = {state: [] for state in STATES}

    def add(self, round_: Dict[str, dict]) -> None:
        own, base = (round_.get(str(ranks), {}).get(self.case, {"unavailable": "not run"}) for ranks in (self.ranks, self.fewest))
        if "unavailable" in own:
            self.why = own["unavailable"]
            return
        self.tokens = own["tokens"]
        self.rates.append(own["tokens"] / own["us"] * 1e6)
        if "unavailable" in base:
            return
        speedup = self.rates[-1] / (base["tokens"] / base["us"] * 1e6)
        state = own["state"] if base["state"] in ("none", own["state"]) else "mixed"  # a rank alone has nobody to be near
        self.speedups[state].append(speedup)
        self.speedups["all"].append(speedup)

    def text(self, state: str) -> str:
        found = self.speedups[state]
        return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f}, n={len(found)})" if found else "-"


def markdown_of(ways: List[str], counts: List[int], size: str, cores: int, rounds: List[dict], head: Dict[str, object]) -> str:
    """``rounds``: of each, by number of ranks (as text) and case, what the program answered."""
    out = [
        "Tokens per second of all ranks, medians. Speedup: that of this many ranks / that of the fewest, in the same round; median "
        "(least-most, rounds), by the state of the machine while the ranks ran. Strong: a step has the same tokens on any "
        "number of ranks. Weak: a rank has; longer sequences also cost more a token, for a token attends to more.", "",
    ]
    out += [f"- {key}: {value}" for key, value in head.items()]
    over = [count for count in counts if count > cores]
    for count in over:
        out.append(f"- **{count} ranks on {cores} cores** take turns: their rows tell that it works, not how it scales")
    states = [state for state in STATES if state != "none"]
    out += ["", "| parallelism | scaling | ranks | tokens a step | tokens/s | share of ideal | " + " | ".join(states) + " |",
            "|---" * (6 + len(states)) + "|"]
    for way in ways:
        for manner in MANNERS:
            for count in counts:
                line = Line(count, min(counts), case_of(way, manner, size))
                for round_ in rounds:
                    line.add(round_)
                out.append(_row(way, manner, line, count in over, states))
    return "\n".join(out) + "\n"


def _row(way: str, manner: str, line: Line, is_over: bool, states: List[str]) -> str:
    ranks = f"{line.ranks} (more than cores)" if is_over else str(line.ranks)
    if not line.rates:
        return " | ".join(["| " + TITLES[way], manner, ranks, "", f"not available: {line.why}", ""] + [""] * len(states)) + " |"
    middle = statistics.median(line.speedups["all"]) if line.speedups["all"] else None
    share = "-" if middle is None else f"{100 * middle * line.fewest / line.ranks:.0f} %"
    words = ["| " + TITLES[way], manner, ranks, str(line.tokens), f"{statistics.median(line.rates):.0f}", share]
    return " | ".join(words + [line.text(state) for state in states]) + " |"
