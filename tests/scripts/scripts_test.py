"""The scripts that people start are executable, parse, explain themselves, and count test results rightly."""
import ast
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
STARTED = [ROOT / "scripts" / name for name in ("quickstart", "test", "setup", "lint")] + [ROOT / ".ci" / "run"]

JUNIT = """<testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><failure message="wrong"/></testcase>
<testcase name="d"><error message="broken"/></testcase>
<testcase name="e"><skipped message="not here"/></testcase>
<testcase name="f" status="disabled"/>
</testsuite>"""


class Scripts(unittest.TestCase):
    def test_every_script_is_executable_and_parses(self):
        for script in STARTED:
            with self.subTest(script=script.name):
                self.assertTrue(os.access(script, os.X_OK))
                subprocess.run(["bash", "-n", str(script)], check=True)

    def test_help_prints_the_header_and_does_nothing(self):
        for script in STARTED[:-1]:
            with self.subTest(script=script.name):
                shown = subprocess.run([str(script), "--help"], check=True, capture_output=True, text=True)
                self.assertIn(f"scripts/{script.name}", shown.stdout)

    def test_an_unusable_interpreter_is_refused_by_name(self):
        for script in ("quickstart", "test", "setup"):
            with self.subTest(script=script):
                refused = subprocess.run([str(ROOT / "scripts" / script), "--python", "no-such-python"],
                                         capture_output=True, text=True)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn("no-such-python", refused.stderr)

    def test_junit_files_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "junit.xml"
            file.write_text(JUNIT, encoding="utf-8")
            counted = subprocess.run([sys.executable, str(ROOT / "scripts" / "count_junit.py"), str(file)],
                                     check=True, capture_output=True, text=True)
        self.assertEqual(counted.stdout.split(), ["2", "2", "2"])

    def test_the_slowest_tests_and_files_come_first(self):
        with tempfile.TemporaryDirectory() as folder:
            pytest, ctest = Path(folder) / "pytest.xml", Path(folder) / "ctest.xml"
            pytest.write_text("""<testsuites><testsuite>
<testcase classname="tests.python.test_b" name="one" time="0.5"/><testcase classname="tests.python.test_b" name="two" time="4"/>
<testcase classname="tests.python.test_a" name="three" time="3.25"/></testsuite></testsuites>""", encoding="utf-8")
            ctest.write_text('<testsuite><testcase name="shm_test" classname="shm_test" time="9"/></testsuite>', encoding="utf-8")
            shown = subprocess.run(
                [sys.executable, str(ROOT / "scripts" / "slowest_tests.py"), "--tests", "3", "--files", "1", str(pytest), str(ctest)],
                check=True, capture_output=True, text=True)
        self.assertEqual([line.split() for line in shown.stdout.splitlines()], [
            ["seconds", "step", "slowest", "tests"], ["9.0", "ctest", "shm_test"], ["4.0", "pytest", "test_b.py::two"],
            ["3.2", "pytest", "test_a.py::three"], [], ["seconds", "tests", "slowest", "Python", "files"], ["4.5", "2", "test_b.py"]])

    def test_the_matrix_has_every_version_that_the_pages_say_was_tested(self):
        rows = (ROOT / "scripts" / "matrix.txt").read_text(encoding="utf-8")
        for package, page in ((r"tensorflow-cpu", "tensorflow"), (r"jax\[cpu\]", "jax"), ("keras", "keras")):
            text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
            with self.subTest(page=page):
                tested = re.findall(r"\d+\.\d+\.\d+", re.search(r"\(tested with ([^:)]*)", text)[1])
                self.assertEqual(sorted(tested), sorted(re.findall(rf" {package}==(\S+)", rows)))

    def test_python_files_keep_to_the_syntax_of_3_9(self):
        for folder in ("scripts", "tests", "examples", "bindings", "collectives"):
            for file in (ROOT / folder).rglob("*.py"):
                with self.subTest(file=str(file.relative_to(ROOT))):
                    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
