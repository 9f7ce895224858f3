"""Cells whose fault is one of a link: the ranks run on hosts made of network namespaces (tests/python/hosts_lab.py).

The cable between the target's host and the switch suffers, for good or for SLOW_SECONDS. Verdicts: where the cable is cut every
rank raises an error that names a rank of the other side; where it is slow, lossy or out of order nobody is lost and all results are
right; where it flips bits a connection ends, and no result is wrong.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/python"))
import hosts_lab  # noqa: E402

RELAY = Path(__file__).with_name("relay.py")
SLOW_SECONDS = 2.5
# fault: what nft or the relay do to the target's cable, and whether the cable is mended
RULES = {  # in the switch, on packets from (iifname) and to (oifname) the target's port
    "black_hole": ['iifname "{port}" drop', 'oifname "{port}" drop'],
    "black_hole_in": ['oifname "{port}" drop'],
    "black_hole_out": ['iifname "{port}" drop'],
    "loss_20": ['iifname "{port}" numgen random mod 100 < 20 drop', 'oifname "{port}" numgen random mod 100 < 20 drop'],
}
RELAYED = ("delay", "corrupt", "reorder")
SLOW = ("delay", "loss_20", "one_mbit", "reorder")
FAULTS = (*RULES, *RELAYED, "link_down", "one_mbit")
# A retransmission may wait as long as the fault has lasted, and so silence lasts longer than the fault.
ENVIRONMENT = {"RUEDA_DEAD_SECONDS": "8", "RUEDA_START_TIMEOUT": "30"}
CUT_ENVIRONMENT = {"RUEDA_DEAD_SECONDS": "3", "RUEDA_START_TIMEOUT": "10"}


def why_not():
    """Why links cannot be made to suffer here; None if they can."""
    if shutil.which("nft") is None:
        return "nft is not installed (nftables)"
    return hosts_lab.why_not()


class Network:
    """The hosts of one cell: one rank each for tcp; ranks 0 and 2 on one and rank 1 on another for mixed."""

    def __init__(self, cell, target, seed):
        self.cell, self.seed = cell, seed
        self.places = [0, 1, 2] if cell.transport == "tcp" else [0, 1, 0]
        self.host = self.places[target]
        self.lab = hosts_lab.Lab(max(self.places) + 1)
        self.relay = None
        self.pending_mend = None

    def __enter__(self):
        self.lab.__enter__()
        return self

    def __exit__(self, *_):
        if self.relay is not None:
            self.relay.kill()
            self.relay.communicate()
        self.lab.__exit__()

    def environment(self):
        return ENVIRONMENT if self.cell.fault in SLOW else CUT_ENVIRONMENT

    def command(self, command):
        return [str(word) for word in self.lab.command(",".join(map(str, self.places)), command)]

    def break_link(self, now):
        fault, port = self.cell.fault, f"p{self.host}"
        if fault in RULES:
            rules = "\n".join(rule.format(port=port) for rule in RULES[fault])
            self.in_switch("nft", "-f", "-", text=f"table bridge fault {{\nchain c {{\ntype filter hook forward priority 0;\n{rules}\n}}\n}}\n")
        elif fault == "link_down":
            self.ip("link", "set", port, "down")
        elif fault == "one_mbit":
            for namespace, device in ((self.lab.switch, port), (self.lab.host(self.host), "eth0")):
                hosts_lab.run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", "1mbit",
                              "burst", "128kb", "limit", "400kb")  # fmt: skip
        else:
            self.start_relay(port)
        if fault in SLOW:
            self.pending_mend = now + SLOW_SECONDS

    def mend_if_due(self, now):
        if self.pending_mend is None or now < self.pending_mend:
            return
        self.pending_mend = None
        fault, port = self.cell.fault, f"p{self.host}"
        if fault in RULES:
            self.in_switch("nft", "delete", "table", "bridge", "fault")
        elif fault == "one_mbit":
            hosts_lab.run("tc", "-n", self.lab.switch, "qdisc", "del", "dev", port, "root")
            hosts_lab.run("tc", "-n", self.lab.host(self.host), "qdisc", "del", "dev", "eth0", "root")
        else:
            self.ip("link", "set", "beyond", "nomaster")
            self.ip("link", "set", port, "master", "br0")
            self.relay.kill()

    def start_relay(self, port):
        """The port leaves the bridge; in its stead a veth whose other end the relay connects with it."""
        self.ip("link", "add", "near", "type", "veth", "peer", "name", "beyond")
        for device in ("near", "beyond"):
            self.ip("link", "set", device, "up")
        self.relay = subprocess.Popen(
            ["ip", "netns", "exec", self.lab.switch, sys.executable, str(RELAY), port, "near", self.cell.fault, str(self.seed)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if self.relay.stdout.readline().strip() != "ready":
            raise RuntimeError("the relay did not start")
        self.ip("link", "set", port, "nomaster")
        self.ip("link", "set", "beyond", "master", "br0")

    def ip(self, *words):
        hosts_lab.run("ip", "-n", self.lab.switch, *words)

    def in_switch(self, *command, text=""):
        done = subprocess.run(["ip", "netns", "exec", self.lab.switch, *command], input=text, capture_output=True, text=True, timeout=20)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def judge_cut(self, raised, code, text):
        """Failures of the verdicts where the target's host was cut off. raised: rank: what it was told."""
        failures = []
        for rank, told in raised.items():
            named = [int(number) for number in re.findall(r"\brank (\d+)\b", told)]
            if not any(self.places[other] != self.places[rank] for other in named if other < len(self.places)):
                failures.append(f"(b) rank {rank} was told of no rank beyond the cut: {told[:300]}")
        if not raised:
            failures.append("(a) no rank said what it was told")
        if not re.search(r"^ruedarun: .*\brank \d", text, re.MULTILINE):
            failures.append("(b) the launcher names no rank")
        if code == 0:
            failures.append("(e) exit code 0 although a host was cut off")
        return failures
