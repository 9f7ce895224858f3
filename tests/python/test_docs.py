"""The examples in README.md and docs/*.md, run as their readers would run them.

How a page is marked: an HTML comment, which readers do not see, in the line above a fenced block.

``<!-- run: ruedarun -np 2 python train.py -->``
    above ```` ```python ````: the block is saved as ``train.py`` in an empty folder, the command is
    run there, and must end with 0. The file name is that of the command's last word. ``ruedarun``
    and ``python`` are those under test; ``NAME=value`` words before them are environment
    variables. The same command without ``ruedarun -np 2`` runs it alone.
``<!-- continued -->``
    above ```` ```python ````: the block belongs to the end of the page's last program.
``<!-- prints -->``
    above ```` ```text ````: every line of the block occurs in the output of the last program.

A run costs some seconds when it imports a framework, so pages have few programs and continue them.
Blocks without a mark are not run. Pages may import what the tests need (torch, numpy); for anything
else write ``<!-- run if jax: ruedarun ... -->``: the program is skipped where jax is missing.
"""

import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from worlds import TIMEOUT_SECONDS, launch, ruedarun

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_MARKED = re.compile(
    r"^<!-- (?P<mark>run(?: if (?P<module>[\w.]+))?: (?P<command>.+?)|continued|prints) -->\n"
    r"```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ANY_MARK = re.compile(r"^<!-- (run\b|continued|prints).*", re.MULTILINE)


class Program:
    """One marked program of a page: its first line there, its text, what it must print."""

    def __init__(self, line, command, module):
        self.line, self.command, self.module = line, command, module
        self.source, self.printed = "", []


def programs(text):
    """The programs of a page in order; ValueError names a mark that is not understood."""
    found, marks = [], 0
    for block in _MARKED.finditer(text):
        marks += 1
        line = text.count("\n", 0, block.start()) + 1
        is_output = block["mark"] == "prints"
        if block["language"] != ("text" if is_output else "python"):
            raise ValueError(f"line {line}: {block['mark']} above a block of {block['language']}")
        if block["command"]:
            found.append(Program(line, block["command"], block["module"]))
        elif not found:
            raise ValueError(f"line {line}: {block['mark']}, but there is no program above")
        if is_output:
            found[-1].printed += block["body"].splitlines()
        else:
            found[-1].source += block["body"] + "\n"
    if marks != len(_ANY_MARK.findall(text)):
        raise ValueError("a mark is not followed by a fenced block, or is spelled wrongly")
    return found


def run(command, folder):
    """(exit code, output) of a command as a mark has it; ValueError for another kind."""
    words = shlex.split(command)
    # Not a cluster that has left its address in Ray's folder.
    env = {"RAY_ADDRESS": "local"}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    size = None
    if words[0] == "ruedarun" and words[1] == "-np":
        size, words = int(words[2]), words[3:]
    options = words[: words.index("python")]
    script = [sys.executable, *words[len(options) + 1 :]]
    if size is not None:
        return launch(size, script, env, options=options, folder=folder)
    if options:
        raise ValueError(f"{command}: expected [ruedarun -np N] python FILE")
    done = subprocess.run(
        script,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    return done.returncode, done.stdout


CASES = [
    pytest.param(page, program, id=f"{page.relative_to(ROOT)}:{program.line}")
    for page in PAGES
    for program in programs(page.read_text())
]


@pytest.mark.parametrize("page, program", CASES)
def test_the_examples_of_a_page_run(page, program, tmp_path):
    if program.module and importlib.util.find_spec(program.module) is None:
        pytest.skip(f"{program.module} is not installed")
    (tmp_path / shlex.split(program.command)[-1]).write_text(program.source)
    code, output = run(program.command, tmp_path)
    where = f"{page.relative_to(ROOT)}, line {program.line}"
    assert code == 0, f"{where}: exit code {code}\n{output}"
    missing = [line for line in program.printed if line.strip() and line not in output]
    assert not missing, f"{where}: {missing} not in the output:\n{output}"


def test_the_page_of_settings_is_the_table():
    """docs/settings.md has each setting once, with the default and meaning that the program prints."""
    out = subprocess.run([ruedarun(), "--print-config"], env={}, capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 4) for line in out.splitlines() if line.startswith("RUEDA_")]
    known = {name: ("" if default == "-" else default, meaning) for name, _, _, default, meaning in rows}
    page = (ROOT / "docs/settings.md").read_text()
    written = re.findall(r"^\| `(RUEDA_\w+)`(?: \*)? \| (.*?) ?\| (.*?) \| (?:`HOROVOD_\w+`)? ?\|$", page, re.M)
    assert sorted(known) == sorted(name for name, *_ in written)
    assert {name: (default, meaning) for name, default, meaning in written} == known


def test_marks_are_understood():
    page = (
        "<!-- run: A=1 ruedarun -np 2 python a.py -->\n```python\nx = 1\n```\n"
        "```python\nnot run\n```\n"
        "<!-- continued -->\n```python\nprint(x)\n```\n<!-- prints -->\n```text\n1\n```\n"
        "<!-- run if jax: python b.py -->\n```python\n```\n"
    )
    first, second = programs(page)
    assert first.source == "x = 1\n\nprint(x)\n\n" and first.printed == ["1"]
    assert (second.line, second.module, second.command) == (16, "jax", "python b.py")
    for wrong in (
        "<!-- continued -->\n```python\n```\n",
        "<!-- run: python a.py -->\n\n```python\n```\n",
        "<!-- run: python a.py -->\n```cpp\n```\n",
        "<!-- run python a.py -->\n```python\n```\n",
    ):
        with pytest.raises(ValueError):
            programs(wrong)


def test_a_program_that_fails_or_prints_something_else_is_noticed(tmp_path):
    (tmp_path / "a.py").write_text("import os, sys; print(os.environ['A']); sys.exit(3)")
    assert run("A=word python a.py", tmp_path) == (3, "word\n")
    code, output = run("A=word ruedarun -np 2 python a.py", tmp_path)
    assert code == 3 and "word" in output
