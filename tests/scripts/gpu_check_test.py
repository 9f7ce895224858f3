"""scripts/gpu_check: programs end in time with all they started, rows fail alone, the table is on disk after each line."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check_lib.command import TIMED_OUT, Runner  # noqa: E402
from gpu_check_lib.rows import Check, Row  # noqa: E402
from gpu_check_lib.table import FAILED, PASSED, Table, reason  # noqa: E402

GRANDCHILD = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '300']).pid, flush=True); time.sleep(300)"


def is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.run_program = Runner(ROOT, self.folder / "log", time.monotonic() + 300)

    def test_a_program_that_does_not_end_is_stopped_with_its_children(self):
        status, output = self.run_program([sys.executable, "-c", GRANDCHILD], 3)
        self.assertEqual(status, TIMED_OUT)
        self.assertIn("no end after 3 s", output)
        child = int(output.split()[0])
        end = time.monotonic() + 20
        while not is_gone(child) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertTrue(is_gone(child))
        self.assertIn("no end after 3 s", (self.folder / "log").read_text())

    def test_a_program_that_is_missing_or_fails_is_told(self):
        self.assertEqual(self.run_program(["/nowhere/program"], 5)[0], 127)
        status, output = self.run_program([sys.executable, "-c", "raise ValueError('seven')"], 20)
        self.assertEqual((status, reason(output)), (1, "ValueError: seven"))

    def test_lines_are_on_disk_at_once_and_other_rows_stay(self):
        table = Table(self.folder, {"GPUs": "one"})
        for row in ("a", "b"):
            table.begin(row)
            table.add(row, f"what {row}", PASSED, "said\n42 | us")
        self.assertIn("| what a | passed | 42 / us |", (self.folder / "gpu_check.md").read_text())
        again = Table(self.folder, {"GPUs": "one"})
        again.begin("b")
        again.outcome("b", "what b", 3, "")
        self.assertTrue(again.failed())
        stored = json.loads((self.folder / "gpu_check.json").read_text())["rows"]
        self.assertEqual(stored, {"a": [["what a", PASSED, "42 / us".replace("/", "|")]], "b": [["what b", FAILED, "exit 3"]]})
        self.assertEqual(Table(self.folder, {"GPUs": "another"}).rows, {})

    def test_a_row_without_its_file_is_not_run(self):
        table = Table(self.folder, {"GPUs": "one"})
        table.begin("x")
        check = Check(self.run_program, None, table, ROOT, self.folder, [1])
        self.assertTrue(check.lacks(Row("x", "what x", 5, None), "", "bin/ruedarun"))
        self.assertEqual(table.rows["x"], [["what x", "not run", "there is no bin/ruedarun"]])

    def test_without_a_gpu_and_a_build_every_row_says_why(self):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/gpu_check"), "--skip-build", "--build", str(self.folder), "--out",
                               str(self.folder / "out"), "--only", "driver,kernels,speed,job,death"],
                              text=True, capture_output=True, timeout=200, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads((self.folder / "out/gpu_check.json").read_text())["rows"]
        for name in ("driver", "kernels", "speed", "job", "death"):
            self.assertEqual({line[1] for line in rows[name]}, {"not run"}, name)
            self.assertTrue(all(line[2] for line in rows[name]), name)

    def test_unknown_rows_are_refused(self):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/gpu_check"), "--only", "kernel"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no such row: kernel", done.stderr)


if __name__ == "__main__":
    unittest.main()
