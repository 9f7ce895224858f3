"""The first minutes: ``rueda demo`` trains a small model, ``rueda new FILE`` writes a script to start from.

Starts nothing in this process and imports no framework.
"""

import argparse
import importlib.util
import os
import shlex
import sys

import rueda_launcher

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = {"pytorch": "pytorch.py", "ddp": "ddp.py", "numpy": "numpy.py", "c++": "c++.cc"}


def demo(arguments):
    """``rueda demo [-np N] [ARGUMENTS...]``: examples/train_digits.py on N ranks, in place of this process."""
    parser = argparse.ArgumentParser(
        prog="rueda demo",
        description="Trains a classifier of handwritten digits on two ranks of this machine.",
        epilog="Further arguments are the script's: --epochs, --batch-size, --lr, --timeline FILE, ...",
    )
    parser.add_argument("-np", type=int, default=2, metavar="N", help="ranks (2)")
    parsed, rest = parser.parse_known_args(arguments)
    if parsed.np < 1:
        parser.error(f"-np {parsed.np}: at least one rank")
    script = os.path.join(_PACKAGE, "share", "rueda", "examples", "train_digits.py")
    if not os.path.isfile(script):
        parser.error(f"{script} is not there: this is a source tree that was not installed (pip install .)")
    if importlib.util.find_spec("torch") is None:
        parser.error("it trains with PyTorch, which this Python has not: pip install torch (or `rueda new --kind numpy`)")
    command = ["-np", str(parsed.np), sys.executable, script, *rest]
    print("rueda demo: ruedarun " + " ".join(command), flush=True)
    rueda_launcher.become(rueda_launcher.launcher(), command, os.environ)


def new(arguments):
    """``rueda new FILE``: a commented script; never over a file that is there."""
    parser = argparse.ArgumentParser(
        prog="rueda new", description="Writes a commented script to start from, and says how it is run."
    )
    parser.add_argument("file", metavar="FILE", help="train.py, or job.cc for C++")
    parser.add_argument("--kind", choices=sorted(TEMPLATES), help="(pytorch; c++ where FILE ends as C++ does)")
    parsed = parser.parse_args(arguments)
    is_cpp = parsed.file.endswith((".cc", ".cpp", ".cxx"))
    kind = parsed.kind or ("c++" if is_cpp else "pytorch")
    if is_cpp != (kind == "c++"):
        parser.error(f"{parsed.file} does not end as a script of kind {kind} does")
    with open(os.path.join(_PACKAGE, "templates", TEMPLATES[kind]), encoding="utf-8") as template:
        text = template.read().replace("NAME", os.path.basename(parsed.file))
    try:
        with open(parsed.file, "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        parser.error(f"{parsed.file} is there already; nothing was written")
    except OSError as error:
        parser.error(f"{parsed.file} cannot be written: {error.strerror}")
    start = "its first lines say how it is run" if is_cpp else f"ruedarun -np 2 python {shlex.quote(parsed.file)}"
    print(f"{parsed.file} is written: {start}")
    return 0


def main(arguments):
    """``python -m rueda demo|new|migrate ...``, as the command ``rueda`` has them; None: it is none of them."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "migrate":
        from rueda.migrate import main as migrate

        return migrate(rest)
    return {"demo": demo, "new": new}.get(command, lambda _: None)(rest)
