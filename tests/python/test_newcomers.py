"""What somebody meets who starts jobs from odd places, with slips of the keyboard or from within a rank."""

import os
import resource
import subprocess
import sys

import pytest
from worlds import TIMEOUT_SECONDS, launch, ruedarun

HELLO = "import numpy, rueda as hvd; hvd.init(); print('sum', hvd.allreduce(numpy.ones(2), op=hvd.Sum, name='x'))"


def start(*words, **settings):
    done = subprocess.run(
        [ruedarun(), *words], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL,
        env={**os.environ, **settings.pop("env", {})}, **settings,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_folder_of_a_job_may_be_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()

    def enter_and_remove():
        os.chdir(gone)
        gone.rmdir()

    code, out = start("-np", "2", sys.executable, "-c", HELLO, preexec_fn=enter_and_remove)
    assert code == 0 and out.count("sum [2. 2.]") == 2, out
    gone.mkdir()
    words = ["-np", "1", "--timeline-filename", "t.json", sys.executable, "-c", HELLO]
    code, out = start(*words, preexec_fn=enter_and_remove)
    assert code == 2 and "the folder that ruedarun was started in is gone" in out, out


CHILD = """
import os, subprocess, sys, numpy, rueda as hvd
if len(sys.argv) > 1:
    keep = open("/dev/null")  # may get a number that was one of the rank's
    try:
        hvd.init()
    except ValueError as error:
        print("child:", error, flush=True)
    sys.exit(0)
hvd.init()
subprocess.run([sys.executable, __file__, "child"], check=True)
print("sum", hvd.allreduce(numpy.ones(2), op=hvd.Sum, name="x"))
"""


def test_a_program_that_a_rank_starts_is_told_that_it_is_no_rank(tmp_path):
    (tmp_path / "a.py").write_text(CHILD)
    code, out = launch(2, [sys.executable, str(tmp_path / "a.py")])
    assert code == 0 and out.count("sum [2. 2.]") == 2, out
    assert out.count("it is a child of that rank") == 2 and out.count("ruedarun -np 1") == 2, out


SLIPS = {
    "'--hostfle'; did you mean --hostfile?": ["--hostfle", "f", "-np", "2", "true"],
    "'--nproc-per-node=2'; the number of ranks is -np N": ["--nproc-per-node=2", "true"],
    "'--nproc_per_node'; the number of ranks is -np N": ["--nproc_per_node", "2", "true"],
    "'--oversubscribe'; more ranks than cores are allowed": ["--oversubscribe", "-np", "2", "true"],
    "-np 'two': expected a number": ["-np", "two", "true"],
    "-np: its value is missing": ["-np"],
    "-np is given more than once": ["-np", "2", "-np", "3", "true"],
    "-H '': it names no host": ["-np", "2", "-H", "", "true"],
    "--ranks 5: there are only 2 ranks, from 0": ["-np", "2", "--ranks", "0,5", "true"],
    "-p 99999: a port is a number": ["-np", "2", "-p", "99999", "true"],
    "cannot read the hostfile /tmp: Is a directory": ["-np", "2", "--hostfile", "/tmp", "true"],
}


@pytest.mark.parametrize("said", SLIPS)
def test_a_slip_is_answered_with_what_was_typed(said):
    code, out = start(*SLIPS[said])
    assert code == 2 and said in out, out


def test_a_python_script_in_place_of_a_command_is_answered_with_the_command(tmp_path):
    script = tmp_path / "train.py"
    script.write_text('"""Trains."""\nimport numpy\n')
    advice = "; to run a script, put python before it: ruedarun -np N python "
    code, out = start("-np", "2", "train.py", "--epochs", "3", cwd=tmp_path)
    assert code == 127 and f"command 'train.py' not found{advice}train.py" in out, out
    for executable, said in ((False, "is not an executable file"), (True, "does not begin with #! and an interpreter")):
        script.chmod(0o755 if executable else 0o644)
        code, out = start("-np", "2", "./train.py", cwd=tmp_path)
        assert code == 126 and f"'./train.py' {said}{advice}./train.py" in out, out
    script.write_text(f"#!{sys.executable}\nprint('starts')\n")
    code, out = start("-np", "2", "./train.py", cwd=tmp_path)
    assert code == 0 and out.count("starts") == 2, out
    code, out = start("-np", "2", "absent.py", cwd=tmp_path)
    assert code == 127 and "command 'absent.py' not found\n" in out, out


def test_a_variable_that_is_nearly_a_setting_is_noted():
    code, out = start("-np", "1", "true", env={"RUEDA_LOG_LEVLE": "debug"})
    assert code == 0
    assert "note: RUEDA_LOG_LEVLE is no setting and has no effect; did you mean RUEDA_LOG_LEVEL?" in out
    code, out = start("-np", "1", "-x", "RUEDA_STAGING_BUFFER=3", "true")
    assert "did you mean RUEDA_STAGING_BUFFERS?" in out


def test_a_rank_that_becomes_another_program_is_told_apart_from_one_that_was_killed():
    program = (
        "import os, numpy, rueda as hvd; hvd.init(); hvd.allreduce(numpy.ones(2), name='x')\n"
        "if hvd.rank() == 1: os.execvp('sleep', ['sleep', '1000'])\n"
        "hvd.allreduce(numpy.ones(2), name='y')"
    )
    code, out = start("-np", "2", "--grace-period", "1", sys.executable, "-c", program)
    assert code == 143, out
    last = [line for line in out.splitlines() if line.startswith("ruedarun: rank 1 (pid")]
    assert "by ruedarun: another program had taken its place (exec)" in last[0], out


def test_a_flight_recorder_that_could_not_be_written_is_told_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    code, out = start("-np", "1", "--flight-recorder", str(tmp_path / "file" / "flight"), "true")
    assert code == 2 and "cannot be written: Not a directory" in out, out
    code, out = start("-np", "1", "--flight-recorder", "new/flight", "true", cwd=tmp_path)
    assert code == 0 and not (tmp_path / "new").exists(), out


def test_a_file_that_may_not_grow_ends_the_copy_of_the_output_and_not_the_job(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    program = "import sys\nfor _ in range(3000): print('x' * 1000)\nprint('the end')"
    words = ["-np", "1", "--output-filename", str(tmp_path / "out"), sys.executable, "-c", program]
    code, out = start(*words, preexec_fn=limit)
    assert code == 0 and "the end" in out, out[-1000:]
    assert "the copy of the output ends here" in out and "ulimit -f" in out, out[-1000:]
