"""Hosts made of network namespaces, for tests and benchmarks of what runs between machines.

    with hosts_lab.Lab(hosts=2, rate="1gbit") as lab:
        code, output = lab.launch(ranks_per_host=2, command=[sys.executable, "script.py"])

Every host is a namespace with one veth into a common bridge, address 10.77.N.1 upward (or fd77:N::),
limited by a token bucket in both directions. A namespace has its own identity for rueda, so ranks in
different ones share no memory. Needs root and iproute2: `why_not()` says what is missing.

Inside, the launcher's ranks enter their host through this file as a command:
    ruedarun -np 4 python hosts_lab.py LAB NUMBER 2 v4 COMMAND...       (2 ranks per host)
    ruedarun -np 3 python hosts_lab.py LAB NUMBER 0,1,0 v4 COMMAND...   (by rank, the host's number)
"""

import ctypes
import functools
import os
import pathlib
import shutil
import socket
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()


def run(*arguments, check=True):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=20)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


@functools.lru_cache(None)
def why_not():
    """Why there can be no lab here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (iproute2)"
    name = f"rueda-try-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        try:
            run("ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
            run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        finally:
            run("ip", "netns", "del", name)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return f"no network namespaces: {error}"
    return None


class Lab:
    """hosts namespaces on one bridge. rate: of every host's link, each way, as tc spells it
    ("100mbit"), None without limit. latency is what a full queue adds at most."""

    count = 0

    def __init__(self, hosts, rate=None, ipv6=False, queue="400kb"):
        Lab.count += 1
        self.name = f"rl{os.getpid() % 100000}x{Lab.count}"
        self.number = (os.getpid() * 7 + Lab.count) % 250 + 1
        self.hosts = hosts
        self.rate = rate
        self.ipv6 = ipv6
        self.queue = queue

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in range(self.hosts):
            run("ip", "netns", "del", self.host(host), check=False)
        run("ip", "netns", "del", self.switch, check=False)

    @property
    def switch(self):
        return f"{self.name}s"

    def host(self, number):
        return f"{self.name}h{number}"

    def address(self, host):
        return address(self.number, host, self.ipv6)

    def _build(self):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for number in range(self.hosts):
            host = self.host(number)
            run("ip", "netns", "add", host)
            run("ip", "-n", self.switch, "link", "add", f"p{number}", "type", "veth",
                "peer", "name", "eth0", "netns", host)  # fmt: skip
            run("ip", "-n", self.switch, "link", "set", f"p{number}", "master", "br0", "up")
            run("ip", "-n", host, "link", "set", "lo", "up")
            run("ip", "-n", host, "link", "set", "eth0", "up")
            if self.ipv6:
                run("ip", "-n", host, "addr", "add", f"{self.address(number)}/64", "dev", "eth0",
                    "nodad")  # fmt: skip
            else:
                run("ip", "-n", host, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            if self.rate:
                self.limit(host, "eth0")
                self.limit(self.switch, f"p{number}")

    def limit(self, namespace, device):
        # A token bucket cuts offloaded packets of 64 KB only if they fit its burst.
        run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate",
            self.rate, "burst", "128kb", "limit", self.queue)  # fmt: skip

    def cut(self, host):
        """Pulls the cable of a host: packets vanish, nobody is told."""
        run("ip", "-n", self.switch, "link", "set", f"p{host}", "nomaster")

    def mend(self, host):
        run("ip", "-n", self.switch, "link", "set", f"p{host}", "master", "br0")

    def sent_bytes(self, host):
        """Bytes that have left a host, with all headers."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(run("ip", "netns", "exec", self.host(host), "cat", path))

    def command(self, ranks_per_host, command):
        """What ruedarun has to start for `command` to run on the hosts, host by host."""
        return [sys.executable, HERE, self.name, self.number, ranks_per_host,
                "v6" if self.ipv6 else "v4", *command]  # fmt: skip

    def start(self, ranks_per_host, command, env=None):
        """A running job, its output as text lines on stdout."""
        import worlds

        size = self.size(ranks_per_host)
        command = self.command(ranks_per_host, command)
        return subprocess.Popen(
            [worlds.ruedarun(), "-np", str(size), *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )  # fmt: skip

    def launch(self, ranks_per_host, command, **options):
        import worlds

        return worlds.launch(
            self.size(ranks_per_host), self.command(ranks_per_host, command), **options
        )

    def size(self, ranks_per_host):
        listed = str(ranks_per_host).split(",")
        return len(listed) if len(listed) > 1 else self.hosts * int(ranks_per_host)


def address(number, host, ipv6):
    return f"fd77:{number}::{host + 1}" if ipv6 else f"10.77.{number}.{host + 1}"


def enter(name, number, ranks_per_host, family, *command):
    """As a rank: goes to its host and becomes the command. The descriptors of the launcher stay."""
    rank = int(os.environ["RUEDA_RANK"])
    host = int(ranks_per_host.split(",")[rank]) if "," in ranks_per_host else rank // int(ranks_per_host)
    os.environ["RUEDA_TCP_ADDRESS"] = address(int(number), host, family == "v6")
    clone_newuts = 0x04000000
    if ctypes.CDLL(None).unshare(clone_newuts) == 0:  # so that messages name the host
        socket.sethostname(f"{name}h{host}")
    inside = ["ip", "netns", "exec", f"{name}h{host}", *command]
    os.execvp(inside[0], inside)


if __name__ == "__main__":
    enter(*sys.argv[1:])
