"""What other users, other programs and the ranks themselves may try on a launcher's ears and files."""

import os
import re
import signal
import subprocess
import sys

import pytest
from worlds import launch, ruedarun

TOOL = ruedarun().replace("ruedarun", "rueda")
STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users")

# As another user: binds a name as jobs have them, or asks.
BIND = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
sockets = []
for name in sys.argv[1:]:
    one = socket.socket(socket.AF_UNIX)
    one.bind("\\0" + name.encode().decode("unicode_escape"))
    one.listen(1)
    sockets.append(one)
print("bound", flush=True)
sys.stdin.read()
"""


def tool(*words):
    return subprocess.run([TOOL, *words], capture_output=True, text=True, timeout=60)


class Held:
    """A process that holds something until the block ends: its first line."""

    def __init__(self, command, endless=False):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endless = endless

    def __enter__(self):
        return self.process.stdout.readline().strip()

    def __exit__(self, *_):
        if self.endless:
            self.process.kill()
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.stdout.close()


def job(program="read x"):
    """A job that runs until the block ends: its id."""
    words = ["-np", "1", "--no-prefix", "--stdin", "0", "sh", "-c", f"echo $RUEDA_JOB_ID; {program}; true"]
    return Held([ruedarun(), *words])


@needs_root
def test_names_that_strangers_bind_are_no_jobs():
    """Neither another user's under our number, nor one that no launcher makes, nor escape sequences."""
    ours = f"rueda-status/{os.geteuid()}/"
    names = [ours + "0123456789abcdef", ours + "\\x1b[31mroot", ours + "short"]
    with Held([sys.executable, "-c", BIND.format(uid=STRANGER), *names]), job() as running:
        listed = tool("status")  # the only job here, unless others test as well
        shown = listed.stdout + listed.stderr
        assert running in shown and "0123456789abcdef" not in shown and "root" not in shown, shown
        asked = tool("status", "0123456789abcdef")
        assert asked.returncode == 1 and "no job '0123456789abcdef'" in asked.stderr
        strange = tool("status", "\x1b[31mx")
        assert strange.returncode == 1 and "\x1b" not in strange.stderr


def readable_by_strangers(tmp_path):
    """A copy of ruedarun that any user may start."""
    program = tmp_path / "ruedarun"
    program.write_bytes(open(ruedarun(), "rb").read())
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    program.chmod(0o755)
    return program


@needs_root
def test_root_asks_jobs_of_other_users(tmp_path):
    program = readable_by_strangers(tmp_path)
    become = f"import os, sys; os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER}); os.execv(sys.argv[1], sys.argv[1:])"
    words = [program, "-np", "1", "--no-prefix", "--stdin", "0", "sh", "-c", "echo $RUEDA_JOB_ID; read x; true"]
    with Held([sys.executable, "-c", become, *words]) as running:
        answer = tool("status", running)
        assert answer.returncode == 0 and "1 rank of sh -c" in answer.stdout, answer.stderr
        drained = tool("drain", running)
        assert drained.returncode == 1 and "none of the 1 ranks listens" in drained.stderr


def test_several_jobs_are_told_apart_by_command_and_start():
    with job("read first"), job("read second"):
        asked = tool("status")
        assert asked.returncode == 1 and "several jobs run" in asked.stderr
        for word in ("first", "second"):
            line = rf"[0-9a-f]{{16}}  pid \d+, 1 rank, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d: sh -c .*read {word}"
            assert re.search(line, asked.stderr), asked.stderr


@needs_root
def test_a_flood_of_strangers_leaves_room_for_an_answer():
    flood = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        "print('flood', flush=True)\n"
        "while True:\n"
        "    one = socket.socket(socket.AF_UNIX); one.setblocking(False)\n"
        "    try: one.connect('\\0' + sys.argv[1])\n"
        "    except BlockingIOError: pass\n"
        "    except OSError: sys.exit(0)\n"
    )
    with job() as running, Held([sys.executable, "-c", flood, f"rueda-status/{os.geteuid()}/{running}"], endless=True):
        answers = [tool("status", running).returncode for _ in range(5)]
    assert answers == [0] * 5


def test_what_ranks_say_is_printed_without_what_terminals_obey():
    program = "printf '\\033[31mred\\033[0m \\033]0;title\\007 end\\n' >&2; exit 3"
    code, output = launch(1, ["sh", "-c", program])
    assert code == 3
    own = [line for line in output.splitlines() if line.startswith("ruedarun: ")]
    assert "ruedarun: its last words: red ?]0;title? end" in own, output
    assert not [line for line in own if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line)], own


def plant(link, target):
    os.symlink(target, link)
    os.lchown(link, STRANGER, STRANGER)


@needs_root
@pytest.mark.parametrize("what", ["folder", "rank", "file"])
def test_copies_of_the_output_do_not_follow_planted_links(what, tmp_path):
    tmp_path.chmod(0o1777)
    victim = tmp_path / "victim"
    out = tmp_path / "out"
    (victim / "rank.0").mkdir(parents=True)
    (victim / "rank.0" / "stdout").write_text("precious")
    if what == "folder":
        plant(out, victim)
    elif what == "rank":
        out.mkdir()
        plant(out / "rank.0", victim / "rank.0")
    else:
        (out / "rank.0").mkdir(parents=True)
        plant(out / "rank.0" / "stdout", victim / "rank.0" / "stdout")
    code, output = launch(1, ["echo", "written"], options=["--output-filename", out])
    assert code == 70 and "is a symbolic link of another user (uid 65534), which is not followed" in output, output
    assert (victim / "rank.0" / "stdout").read_text() == "precious"


def test_ones_own_links_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    code, output = launch(1, ["echo", "written"], options=["--output-filename", tmp_path / "out"])
    assert code == 0, output
    assert (tmp_path / "real" / "rank.0" / "stdout").read_text() == "written\n"


@needs_root
def test_a_timeline_does_not_follow_a_planted_link(tmp_path):
    tmp_path.chmod(0o1777)
    (tmp_path / "victim").write_text("precious")
    plant(tmp_path / "timeline.json", tmp_path / "victim")
    program = "import rueda; rueda.init()"
    code, output = launch(
        1, [sys.executable, "-c", program], options=["--timeline-filename", tmp_path / "timeline.json"]
    )
    assert (tmp_path / "victim").read_text() == "precious", output
    assert "symbolic link of another user" in output, output


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_copy_that_is_no_regular_file_is_refused_at_once(make, tmp_path):
    (tmp_path / "rank.0").mkdir()
    make(tmp_path / "rank.0" / "stdout")
    code, output = launch(1, ["echo", "written"], options=["--output-filename", tmp_path], timeout=60)
    assert code == 70 and "it is there and no regular file" in output, output


def test_a_token_file_takes_no_other_files_place(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("weeks = 'of work'\n")
    run = subprocess.run(
        [ruedarun(), "-np", "1", "-H", "a:1", "--token-file", model, "--start-timeout", "2", "true"],
        capture_output=True, text=True, timeout=60,
    )
    assert run.returncode == 70 and "it is there already and no ticket" in run.stderr, run.stderr
    assert model.read_text() == "weeks = 'of work'\n"


def test_a_token_file_of_a_killed_job_is_replaced(tmp_path):
    token = tmp_path / "token"
    token.write_text("rueda ticket 1\njob 0\n")
    run = subprocess.run(
        [ruedarun(), "-np", "1", "-H", "a:1", "--token-file", token, "--start-timeout", "1", "true"],
        capture_output=True, text=True, timeout=60,
    )
    assert run.returncode == 124, run.stderr
    assert not token.exists()


def test_a_stopped_agent_is_noticed_and_a_second_interrupt_ends_it():
    running = subprocess.Popen(
        [ruedarun(), "-np", "1", "--no-prefix", "sh", "-c", "echo $PPID; sleep 600"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    agent = int(running.stdout.readline())
    os.kill(agent, signal.SIGSTOP)
    told = running.stderr.readline()
    assert f"the agent (pid {agent}), which looks after the ranks, has been stopped" in told, told
    os.kill(agent, signal.SIGCONT)
    assert "goes on" in running.stderr.readline()
    os.kill(agent, signal.SIGSTOP)
    assert "has been stopped" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 128 + signal.SIGKILL
    running.communicate()


def test_a_rank_that_hangs_before_init_is_named_with_its_pid_long_before_the_start_timeout(tmp_path):
    program = (
        "import os, sys, time\n"
        "if os.environ['RUEDA_RANK'] == '1':\n"
        "    print(os.getpid(), os.environ['RUEDA_JOB_ID'], file=open(sys.argv[1], 'w'), flush=True); time.sleep(600)\n"
        "import rueda; rueda.init()\n"
    )
    running = subprocess.Popen(
        [ruedarun(), "-np", "2", sys.executable, "-c", program, tmp_path / "pid"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "RUEDA_START_TIMEOUT": "6"},
    )
    line = running.stderr.readline()
    pid, job_id = (tmp_path / "pid").read_text().split()
    assert f"rank 1 (pid {pid}) has not called init, and others have waited 3 s for it: blocked in" in line, line
    shown = tool("status", job_id).stdout
    assert re.search(rf"rank 1 +pid {pid} .*has not called init", shown), shown
    rest = running.communicate(timeout=60)[1]
    assert "rank 1 has not called init after 6 s (RUEDA_START_TIMEOUT)" in rest, rest


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_the_headline_names_who_left_with_code_0(leave):
    program = (
        "import os, sys, numpy, rueda; rueda.init()\n"
        "rueda.barrier()\n"
        f"if rueda.rank() == 1: {leave}\n"
        "rueda.allreduce(numpy.ones(3), name='needed')\n"
    )
    code, output = launch(2, [sys.executable, "-c", program])
    own = [line for line in output.splitlines() if line.startswith("ruedarun: ")]
    assert code == 1, output
    assert re.fullmatch(r"ruedarun: rank 1 \(pid \d+\) exited with code 0 while others still needed it", own[0]), output
    assert re.match(r"ruedarun: rank 0 \(pid \d+\) then failed: exited with code 1", own[1]), output


@needs_root
def test_where_no_processes_are_left_one_line_names_the_limit(tmp_path):
    """However far the launcher comes: it never ends in the C++ library's words."""
    program = readable_by_strangers(tmp_path)
    become = (
        "import os, resource, sys; os.setgroups([]); os.setgid(54321); "
        "resource.setrlimit(resource.RLIMIT_NPROC, (int(sys.argv[1]),) * 2); "
        "os.setuid(54321); os.execv(sys.argv[2], sys.argv[2:])"
    )
    codes = []
    for most in range(1, 14):
        words = [sys.executable, "-c", become, str(most), program, "-np", "2", "true"]
        run = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd="/")
        codes.append(run.returncode)
        if run.returncode == 0:
            continue
        assert run.returncode == 70, (most, run.stderr)
        assert "no processes or threads are left" in run.stderr, (most, run.stderr)
        assert f"the user {most} (ulimit -u)" in run.stderr and "terminate" not in run.stderr, (most, run.stderr)
    assert codes[0] == 70 and codes[-1] == 0, codes
