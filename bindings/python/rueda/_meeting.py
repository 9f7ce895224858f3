"""How ranks meet that Ray or Spark has started: each says where it is, and all learn the same answer.

On one machine they meet behind a unix socket, without a port and without a key. On several rank 0 keeps a
port, and all need the job's key, which travels with the answer and is in no environment.
"""

import fcntl
import os
import secrets
import socket
import struct

from rueda.compat.variables import PLACE

_kept = None  # the socket that keeps this process's port


def machine():
    """What processes that can meet without a port have in common."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')} {os.geteuid()}"


def facts(node, address, interfaces=None):
    """Where this process is, as plain values.

    Parameters
    ----------
    node : str
        Its host, in the words of who started it.
    address : str
        By which others reach it.
    interfaces : collection of str, optional
        Network interfaces one of which is to be used; then ranks meet at a port even on one machine.
        ValueError if none of them has an IPv4 address here.
    """
    return {
        "node": node,
        "address": _address_of(interfaces) if interfaces else address,
        "port": _keep_a_port(),
        "machine": machine(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }


def new_key():
    """A fresh secret for one job."""
    return secrets.token_bytes(32)


def places(job, all_facts, key, by_port=False):
    """The arguments of ``init`` for each rank.

    Parameters
    ----------
    job : str
        A name that no other job has.
    all_facts : list of dict
        What `facts` gave, rank by rank.
    key : bytes
        Used where they meet at a port.
    by_port : bool
        Whether they meet at a port in any case.
    """
    size = len(all_facts)
    place = {"size": size, "job": job}
    if by_port or len({each["machine"] for each in all_facts}) > 1:
        first = all_facts[0]
        host = f"[{first['address']}]" if ":" in first["address"] else first["address"]
        place.update(rendezvous=f"{host}:{first['port']}", key=key)
    return [{"rank": rank, **place} for rank in range(size)]


def variables(all_facts):
    """`PLACE` for each rank, with the numbers that ``hvd.rank()`` and its like give after ``init``.

    ``all_facts``: what `facts` gave, rank by rank.
    """
    machines = [each["machine"] for each in all_facts]
    sizes = {machine: machines.count(machine) for machine in machines}  # in the order of their first ranks
    made = []
    for rank, machine in enumerate(machines):
        local_rank = machines[:rank].count(machine)
        across = [other for other, size in sizes.items() if size > local_rank]
        place = (
            rank, len(machines), local_rank, sizes[machine], across.index(machine), len(across)
        )  # fmt: skip
        made.append(dict(zip(PLACE, map(str, place))))
    return made


def dense(all_facts):
    """The order in which processes become ranks: those of a node one after the other, nodes as they came."""
    nodes = list(dict.fromkeys(each["node"] for each in all_facts))
    return sorted(range(len(all_facts)), key=lambda index: nodes.index(all_facts[index]["node"]))


def _keep_a_port():
    """A port that nobody else is given while this process lives; the library may still listen there.

    Both sockets say SO_REUSEADDR, and this one never listens.
    """
    global _kept
    if _kept is None:
        _kept = socket.socket()
        _kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.bind(("", 0))
    return _kept.getsockname()[1]


def _address_of(interfaces):
    """The IPv4 address of the first of these interfaces that has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in sorted(interfaces):
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(any_socket, 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            return socket.inet_ntoa(answer[20:24])
    raise ValueError(
        f"{socket.gethostname()} has no network interface with an IPv4 address among "
        f"{', '.join(sorted(interfaces))}; it has {', '.join(n for _, n in socket.if_nameindex())}"
    )
