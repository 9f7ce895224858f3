"""Strangers at the port on which ranks meet: whatever they send, the job runs and needs no more memory.

Two ranks without an agent, so that rank 0 keeps the store behind a port; rank 1 comes late, and thousands come first.
"""

import os
import pathlib
import resource
import secrets
import socket
import struct
import subprocess
import sys
import time

import pytest
from worlds import TIMEOUT_SECONDS

ROOM = 16 << 20  # bytes that rank 0 may grow by

PROGRAM = """
import numpy as np
import rueda as hvd
hvd.init()
print("sum", hvd.allreduce(np.ones(1000), op=hvd.Sum).sum(), flush=True)
hvd.shutdown()
"""


def listening(port):
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
            return True
    return False


def memory(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


def hello():
    """What a rank without the key could make: the shape of a hello, and a proof of nothing."""
    return os.urandom(4) + bytes(range(52)) + os.urandom(32)


SAYINGS = {
    "nothing": lambda _: b"",
    "a byte": lambda _: b"R",
    "a hello with a wrong proof": lambda _: hello(),
    "a length of 4 GiB": lambda _: struct.pack("<I", 0xFFFFFFFF) + b"x" * 60,
    "nonsense": lambda i: os.urandom(i % 4096),
}


@pytest.fixture
def waiting_job(tmp_path):
    """(pid of rank 0, which waits behind its port, the port, a function that brings rank 1 and ends both)."""
    key = tmp_path / "key"
    key.write_bytes(secrets.token_bytes(32).hex().encode())
    key.chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []

    def start(rank):
        place = {"RUEDA_RANK": str(rank), "RUEDA_SIZE": "2", "RUEDA_RENDEZVOUS": f"127.0.0.1:{port}"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env={**os.environ, **place, "RUEDA_KEY_FILE": str(key)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    def finish():
        start(1)
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in started]
        assert [process.returncode for process in started] == [0, 0], outputs
        assert all("sum 2000.0" in output for output in outputs), outputs

    start(0)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not listening(port):
        assert started[0].poll() is None, started[0].communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield started[0].pid, port, finish
    for process in started:
        process.kill()
        process.wait()


def crowd(port, count):
    """That many connections at once, each with something to say; those the kernel takes."""
    kinds = list(SAYINGS.values())
    sockets = []
    for number in range(count):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        sockets.append(one)
        if number % 64 == 63:
            time.sleep(0.002)  # let the port take some in
        for earlier in sockets[-64:-63]:
            try:
                earlier.send(kinds[number % len(kinds)](number))
            except OSError:
                pass  # not connected, or already sent away
    return sockets


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_crowd_of_strangers_costs_no_memory_and_keeps_nobody_out(waiting_job, count):
    pid, port, finish = waiting_job
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < count + 100:
        pytest.skip(f"{most} descriptors are not enough for {count} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(count + 100, 1024), most))
    before = memory(pid, "VmRSS")
    strangers = crowd(port, count)
    grown = memory(pid, "VmHWM") - before
    print(f"{count} connections: rank 0 grew by {grown / 2**20:.1f} MiB")
    assert grown <= ROOM
    finish()
    for stranger in strangers:
        stranger.close()


def closed_within(stranger, seconds):
    """Reads what comes for so long; (whether the other side closed, what came)."""
    end = time.monotonic() + seconds
    got = b""
    while (left := end - time.monotonic()) > 0:
        stranger.settimeout(left)
        try:
            chunk = stranger.recv(256)
        except socket.timeout:
            break
        except OSError:
            return True, got
        if not chunk:
            return True, got
        got += chunk
    return False, got


def test_one_byte_a_second_is_sent_away(waiting_job):
    """Who says a hello byte by byte has five seconds for all of it, not five for each byte."""
    _, port, finish = waiting_job
    with socket.create_connection(("127.0.0.1", port)) as slow:
        for said in range(55):  # one byte less than a hello
            try:
                slow.send(b"R")
            except OSError:
                break
            if closed_within(slow, 1)[0]:
                break
        else:
            pytest.fail(f"the connection is still there after {said + 1} seconds")
    finish()


def test_a_replayed_hello_opens_nothing(waiting_job):
    """The bytes with which one connection began, sent again on another, get no proof in return."""
    _, port, finish = waiting_job
    said = hello()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
            closed, got = closed_within(stranger, TIMEOUT_SECONDS)
            assert closed
            assert len(got) <= 56  # a hello at most, never a proof
    finish()
