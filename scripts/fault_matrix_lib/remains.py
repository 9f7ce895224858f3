"""What a job could leave behind, seen from outside."""

import os
import tempfile
from pathlib import Path


def names():
    """What a job could leave by name. The files of tests that run at the same time have names of their own."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith("rueda")}
    folder = tempfile.gettempdir()
    return found | {f"{folder}/{name}" for name in os.listdir(folder) if name.startswith("rueda-") and "test-of" not in name}


def sockets_of(pids):
    """Abstract unix sockets and listening TCP ports that these processes hold, as inodes."""
    inodes = set()
    for pid in pids:
        try:
            for fd in os.scandir(f"/proc/{pid}/fd"):
                link = os.readlink(fd.path)
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
        except OSError:
            continue
    return inodes


def open_inodes():
    """Of every socket of this machine that belongs to somebody."""
    lines = []
    for table in ("unix", "tcp", "tcp6"):
        lines += Path("/proc/net", table).read_text().splitlines()[1:]
    found = set()
    for line in lines:
        fields = line.split()
        if fields[0].endswith(":") and len(fields) > 9:  # tcp
            if fields[3] != "06":  # TIME_WAIT belongs to nobody
                found.add(fields[9])
        elif len(fields) > 6:
            found.add(fields[6])
    return found


def parent_of(pid):
    try:
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def command_of(pid):
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""
