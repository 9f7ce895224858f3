"""Prints which tests took the time, of JUnit files as ctest and pytest write them.

    slowest_tests.py [--tests N] [--files N] FILE...

The N slowest tests (25), and the N Python files whose tests take longest together (15). Seconds as the step's table has
them; the step is the file's name.
"""
import argparse
import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def cases(path):
    """(step, Python file or "", name, seconds) of each test of one file."""
    step = pathlib.Path(path).stem
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.get("classname", "").rpartition(".")[2]
        file = f"{file}.py" if file.startswith("test_") else ""
        yield step, file, case.get("name"), float(case.get("time") or 0)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=int, default=25)
    parser.add_argument("--files", type=int, default=15)
    parser.add_argument("paths", nargs="+", metavar="FILE")
    options = parser.parse_args(arguments)

    found = [case for path in options.paths for case in cases(path)]
    print(f"{'seconds':>8}  {'step':<10} slowest tests")
    for step, file, name, seconds in sorted(found, key=lambda case: -case[3])[: options.tests]:
        print(f"{seconds:8.1f}  {step:<10} {file + '::' if file else ''}{name}")

    files, counts = collections.Counter(), collections.Counter()
    for _, file, _, seconds in found:
        if file:
            files[file] += seconds
            counts[file] += 1
    if files:
        print(f"\n{'seconds':>8}  {'tests':<10} slowest Python files")
    for file, seconds in files.most_common(options.files):
        print(f"{seconds:8.1f}  {counts[file]:<10} {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
