"""Several hosts, as network namespaces: nothing but the bridge connects them (hosts_lab.py)."""

import pathlib
import re
import sys

import hosts_lab
import pytest

pytestmark = pytest.mark.skipif(hosts_lab.why_not() is not None, reason=str(hosts_lab.why_not()))

PROGRAM = pathlib.Path(__file__).with_name("hosts_program.py")


def run(lab, ranks_per_host, scene, env=None):
    command = [sys.executable, PROGRAM, scene]
    code, output = lab.launch(ranks_per_host, command, env=env)
    assert code == 0, output
    return output


def values(output, name):
    """What every rank printed as `name=value`, by rank."""
    found = re.findall(rf"\[(\d+)\]<stdout>: .*\b{name}=(-?\d+)", output)
    return [int(value) for _, value in sorted((int(rank), value) for rank, value in found)]


@pytest.mark.parametrize("hosts, ranks", [(2, 1), (2, 2), (3, 1), (4, 2)])
def test_every_collective_is_right_between_hosts(hosts, ranks):
    with hosts_lab.Lab(hosts) as lab:
        output = run(lab, ranks, "collectives")
    assert output.count("all right") == hosts * ranks
    assert values(output, "local_size") == [ranks] * hosts * ranks
    assert values(output, "cross_size") == [hosts] * hosts * ranks
    if ranks == 1:  # hosts share no memory
        assert values(output, "shm_bytes") == [0] * hosts


def test_ipv6_alone_is_enough():
    with hosts_lab.Lab(2, ipv6=True) as lab:
        assert run(lab, 2, "collectives").count("all right") == 4


@pytest.mark.parametrize("hosts, ranks", [(2, 2), (4, 2), (3, 1)])
def test_an_allreduce_crosses_each_link_as_often_as_it_must(hosts, ranks):
    with hosts_lab.Lab(hosts) as lab:
        output = run(lab, ranks, "bytes")
    bound = 2 * (hosts - 1) / hosts * values(output, "payload")[0]
    sent = values(output, "tcp_bytes")
    for host in range(hosts):
        crossed = sum(sent[host * ranks : (host + 1) * ranks])
        assert 0.999 * bound <= crossed <= 1.03 * bound


def test_compression_between_hosts_halves_the_bytes():
    with hosts_lab.Lab(2) as lab:
        plain = run(lab, 2, "bytes")
        small = run(lab, 2, "bytes", {"RUEDA_HOST_COMPRESSION": "bf16"})
    assert sum(values(plain, "tcp_bytes")) >= 1.9 * sum(values(small, "tcp_bytes"))
