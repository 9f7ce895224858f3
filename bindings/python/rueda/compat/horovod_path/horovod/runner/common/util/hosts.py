"""Horovod's ``horovod.runner.common.util.hosts``, by rueda: hosts as text, and which ranks lie on them."""

import re
from dataclasses import dataclass


class HostInfo:
    def __init__(self, hostname, slots):
        self.hostname = hostname
        self.slots = slots

    @staticmethod
    def from_string(host_string):
        """Of "name:slots"."""
        hostname, slots = host_string.strip().split(":")
        return HostInfo(hostname, int(slots))


@dataclass
class SlotInfo:
    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self):
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_host_files(filename):
    """ "a:2,b:4" of a file with a line "a slots=2" for each host."""
    found = []
    with open(filename, encoding="utf-8") as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if words:
                slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
                found.append(f"{words[0]}:{slots[0] if slots else 1}")
    return ",".join(found)


def parse_hosts_and_slots(hosts):
    """(names, {name: slots}) of "a:2,b:4"; ValueError for anything else."""
    for host in hosts.split(","):
        if not re.fullmatch(r"[\w.-]+:[0-9]+", host.strip()):
            raise ValueError(f"Invalid host input {host!r}: the form is worker-0:2,worker-1:2.")
    found = parse_hosts(hosts)
    return [host.hostname for host in found], {host.hostname: host.slots for host in found}


def parse_hosts(hosts_string):
    """[HostInfo] of "a:2,b:4"."""
    return [HostInfo.from_string(text) for text in hosts_string.split(",")]


def get_host_assignments(hosts, min_np, max_np=None):
    """[SlotInfo] by rank: host after host is filled, up to ``max_np`` ranks; ValueError for fewer than ``min_np``."""
    places = [(host.hostname, local) for host in hosts for local in range(host.slots)][:max_np]
    if len(places) < min_np:
        raise ValueError(f"Requested more processes ({min_np}) than there are available slots ({len(places)})")
    local_sizes, across = {}, {}
    for hostname, local in places:
        local_sizes[hostname] = local + 1
        across.setdefault(local, []).append(hostname)
    return [
        SlotInfo(
            hostname=hostname,
            rank=rank,
            local_rank=local,
            cross_rank=across[local].index(hostname),
            size=len(places),
            local_size=local_sizes[hostname],
            cross_size=len(across[local]),
        )
        for rank, (hostname, local) in enumerate(places)
    ]
