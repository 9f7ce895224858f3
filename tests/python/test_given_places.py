"""Programs that place their processes themselves: ``hvd.init(rank=, size=, job=, rendezvous=, key=)``."""

import os
import re
import socket
import subprocess
import sys
import uuid

import pytest
import rueda as hvd
from worlds import launch

ADD = """
import sys
import numpy, rueda as hvd
rank, job, rendezvous, key = int(sys.argv[1]), *(text or None for text in sys.argv[2:5])
for again in range(2):
    hvd.init(rank=rank, size=2, job=job, rendezvous=rendezvous, key=key and key.encode())
    print(hvd.rank(), hvd.size(), hvd.allreduce(numpy.ones(3), op=hvd.Sum).tolist())
    hvd.shutdown()
"""


def start(rank, job, rendezvous="", key="", **more):
    return subprocess.Popen(
        [sys.executable, "-c", ADD, str(rank), job, rendezvous, key],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "RUEDA_START_TIMEOUT": "60", **more},
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("where", ["this host", "a port"])
def test_ranks_say_themselves_who_they_are(where):
    # Other launchers' variables do not count then.
    job, others = uuid.uuid4().hex, {"RANK": "5", "WORLD_SIZE": "7", "MASTER_ADDR": "localhost"}
    meeting = () if where == "this host" else (f"127.0.0.1:{free_port()}", "a secret of this job")
    started = [start(rank, job, *meeting, **others) for rank in range(2)]
    for rank, process in enumerate(started):
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert output == f"{rank} 2 [2.0, 2.0, 2.0]\n" * 2


def test_a_rank_with_another_key_is_refused():
    job, port = uuid.uuid4().hex, free_port()
    secrets = ["a secret of this job", "a secret of another job"]
    started = [
        start(rank, job, f"127.0.0.1:{port}", secrets[rank], RUEDA_START_TIMEOUT="5") for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert all(process.returncode != 0 for process in started)
    assert "RUEDA_KEY_FILE" in outputs[1] and not any(secret in "".join(outputs) for secret in secrets)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": 0}, "a rank and no size"),
        ({"size": 2}, "a size and no rank"),
        ({"job": "x"}, "neither rank nor size"),
        ({"key": b"0123456789abcdef"}, "neither rank nor size"),
        ({"rank": 2, "size": 2, "job": "x"}, "rank 2 of 2: there is no such rank"),
        ({"rank": 0, "size": 2}, "not told of which job"),
        ({"rank": 0, "size": 2, "job": "x", "rendezvous": "h:1", "key": b"short"}, "16 to 4096 bytes, not 5"),
        ({"rank": 0, "size": 2, "job": "x", "rendezvous": "nowhere"}, "expected HOST:PORT"),
        ({"rank": -1, "size": 2, "job": "x"}, "rank=-1"),
        ({"rank": 0, "size": 2, "job": "x", "key": "text"}, "expected bytes, not str"),
        ({"rank": 0, "size": 2, "job": ""}, "not empty"),
    ],
)
def test_what_is_no_place_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        hvd.init(**given)
    assert not hvd.is_initialized()


def test_what_ruedarun_says_must_be_the_same():
    agrees = "import os, rueda as hvd; hvd.init(rank=int(os.environ['RUEDA_RANK']), size=2); hvd.shutdown()"
    code, output = launch(2, [sys.executable, "-c", agrees])
    assert code == 0, output
    code, output = launch(2, [sys.executable, "-c", "import rueda as hvd; hvd.init(rank=1, size=3, job='x')"])
    assert code != 0
    assert "asks to be rank 1 of 3, but ruedarun says RUEDA_RANK=0 and RUEDA_SIZE=2" in output


ELSEWHERE = """
import os, sys
import numpy, rueda as hvd
mine = int(os.environ["RUEDA_RANK"])
if mine < 2:  # another job, in the other order
    hvd.init(rank=1 - mine, size=2, job=sys.argv[1], rendezvous=sys.argv[2], key=b"a secret of this job")
    gathered = hvd.allgather(numpy.array([mine]))
    print(f"of {mine}:", hvd.rank(), hvd.size(), hvd.local_size(), gathered.tolist())
    hvd.shutdown()
if len(sys.argv) > 3:
    hvd.init()
    print(f"with all {mine}:", hvd.rank(), hvd.size(), hvd.allgather(numpy.array([mine])).tolist())
"""


@pytest.mark.parametrize("joins", [False, True])
def test_a_whole_place_wins_over_ruedarun(joins):
    arguments = [uuid.uuid4().hex, f"127.0.0.1:{free_port()}", *["later"][: int(joins)]]
    code, output = launch(2 + joins, [sys.executable, "-c", ELSEWHERE, *arguments])
    assert code == 0, output
    for mine in range(2):
        assert f"of {mine}: {1 - mine} 2 2 [1, 0]" in output, output
    if joins:  # it was a process that had not called init yet
        assert all(f"with all {rank}: {rank} 3 [0, 1, 2]" in output for rank in range(3)), output
    assert "has not called init" not in output and "WARNING" not in output, output


def test_a_rank_that_takes_part_elsewhere_has_not_called_init():
    code, output = launch(
        2,
        [
            sys.executable,
            "-c",
            "import os, rueda as hvd\n"
            "if os.environ['RUEDA_RANK'] == '0': hvd.init()\n"
            "hvd.init(rank=0, size=1, job='x', rendezvous='127.0.0.1:1', key=b'a secret of this job')\n"
            "print('size', hvd.size())",
        ],
    )
    assert code != 0 and "size 1" in output, output
    assert re.search("rank 1 .*(ended|exited|init)", output), output


def test_a_rank_stays_who_it_is_until_it_leaves():
    hvd.init(rank=0, size=1)
    try:
        hvd.init(rank=0, size=1)
        with pytest.raises(ValueError, match="asked for rank 1 of 2, but this process is rank 0 of 1"):
            hvd.init(rank=1, size=2, job="x")
    finally:
        hvd.shutdown()
