"""Hosts for tests: network namespaces of this machine, joined by a bridge.

``ip netns exec NAME`` starts a program "on the host" NAME; ruedarun does so with ``--rsh-agent``. The
namespaces share files and processes with this machine, but no network and, for rueda, no memory.
"""

import contextlib
import os
import subprocess


def ip(*words, check=True):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def why_not():
    """Why namespaces cannot be made here; None where they can."""
    name = f"rn{os.getpid()}t"
    try:
        ip("netns", "add", name)
        ip("link", "add", f"{name}b", "type", "bridge")
    except (OSError, RuntimeError) as error:
        return f"no network namespaces: {error}"
    finally:
        with contextlib.suppress(OSError):
            ip("link", "del", f"{name}b", check=False)
            ip("netns", "del", name, check=False)
    return None


class Lab:
    """``count`` hosts, each with eth0 on one bridge; this machine is on the bridge, too. ``hosts`` are
    their names; IPv4 10.213.N.1 ff. unless ``ipv6_only``, then fd13:N::1 ff., with an N that no other
    network of this machine has. Leave with close()."""

    def __init__(self, count, number=1, ipv6_only=False):
        self.prefix = f"rn{os.getpid()}x{number}"
        self.bridge = f"{self.prefix}b"
        self.hosts = [f"{self.prefix}h{i}" for i in range(count)]
        self.ipv6_only = ipv6_only
        self.number = number + os.getpid() % 200
        taken = ip("-o", "addr")  # a test that was killed leaves its bridge, which would take our answers
        while f" {self.address(98)}/" in taken:
            self.number = self.number % 250 + 1
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def address(self, index):
        """Of a host; 98: this machine on the bridge."""
        if self.ipv6_only:
            return f"fd13:{self.number:x}::{index + 1:x}"
        return f"10.213.{self.number}.{index + 1}"

    def _add_address(self, words, index):
        bits, extra = ("64", ["nodad"]) if self.ipv6_only else ("24", [])
        ip(*words, "addr", "add", f"{self.address(index)}/{bits}", "dev",
           self.bridge if index == 98 else "eth0", *extra)

    def _build(self):
        ip("link", "add", self.bridge, "type", "bridge")
        self._add_address([], 98)
        ip("link", "set", self.bridge, "up")
        for i, host in enumerate(self.hosts):
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
            ip("link", "add", self.cable(i), "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("link", "set", self.cable(i), "master", self.bridge, "up")
            self._add_address(["-n", host], i)
            ip("-n", host, "link", "set", "eth0", "up")

    def cable(self, index):
        """Our end of a host's cable: set it down, and the host is cut off."""
        return f"{self.prefix}c{index}"

    def inside(self, index, *words):
        return ip("-n", self.hosts[index], *words)

    @contextlib.contextmanager
    def dropped(self, index, address, ways=("in", "out")):
        """Meanwhile what this host has from that address, or sends there, is lost without a word: for nft, which must be there."""
        rules = {"in": ("input", f"saddr {address}"), "out": ("output", f"daddr {address}")}
        family = "ip6" if self.ipv6_only else "ip"
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; {family} {match} drop; }}\n" for hook, match in map(rules.get, ways)
        )
        self._nft(index, f"table inet dropped {{\n{chains}}}\n")
        try:
            yield
        finally:
            self._nft(index, "delete table inet dropped\n")

    def _nft(self, index, text):
        subprocess.run(["ip", "netns", "exec", self.hosts[index], "nft", "-f", "-"], input=text, text=True, check=True, timeout=30)

    def processes(self):
        """Ids of all processes on the hosts."""
        found = set()
        for host in self.hosts:
            found.update(int(pid) for pid in ip("netns", "pids", host, check=False).split())
        return found

    def close(self):
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        for host in self.hosts:
            ip("netns", "del", host, check=False)
        ip("link", "del", self.bridge, check=False)
