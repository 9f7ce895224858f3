"""Modules of the package import each other in one direction, and each can be imported first."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest
import rueda

PACKAGE = pathlib.Path(rueda.__file__).resolve().parent

# Circles that are truly needed: sets of modules, with the reason. None.
ALLOWED = ()


def modules():
    """{name: path} of the package, without what stands in for Horovod's."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if "horovod_path" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(path, known):
    """Modules of the package that a file imports, anywhere: at its top or within a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name in known}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for name in node.names:
                # A name of a package that is no module of its own comes from the package.
                whole = f"{node.module}.{name.name}"
                found |= {whole if whole in known else node.module} & set(known)
    return found


def circles(edges):
    """The strongly connected components of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1 or module in edges[module]:
                found.append(sorted(members))

    for module in edges:
        if module not in index:
            visit(module)
    return found


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [["b", "c"], ["d"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_there_are_no_circles_of_imports():
    known = modules()
    assert len(known) > 70
    edges = {name: imported_by(path, known) for name, path in known.items()}
    found = [circle for circle in circles(edges) if set(circle) not in ALLOWED]
    assert found == [], f"modules that import each other: {found}"


EACH_ALONE = """if True:
    import contextlib, importlib, os, sys, traceback

    for slow in sys.argv[1].split():  # not rueda's: once for all
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(slow)

    for name in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                # Of another project that is not installed: the module is for those who have it.
                if error.name.split(".")[0] in ("rueda", "horovod"):
                    traceback.print_exc()
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_every_module_can_be_imported_first():
    """Each in a process of its own that has nothing of rueda yet."""
    known = sorted(modules())
    large = [each for each in known if each.startswith(("rueda.jax", "rueda.keras", "rueda.tensorflow"))]
    quiet = {"KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    for before, names in (
        ("numpy torch torch._higher_order_ops.effects", sorted(set(known) - set(large))),
        ("jax flax optax keras tensorflow", large),
    ):
        command = [sys.executable, "-c", EACH_ALONE, before, *names]
        done = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_numpy_is_imported_at_its_first_use():
    """A rank that only asks who it is, and one that has PyTorch tensors alone, does without."""
    program = (
        "import sys, rueda; rueda.init(); rueda.rank(); rueda.shutdown()\n"
        "assert 'numpy' not in sys.modules\n"
        "rueda.init(); import numpy\n"
        "assert rueda.allreduce([1.0, 2.0], op=rueda.Sum).tolist() == [1.0, 2.0]\n"
        "from rueda._arrays import Arrays\n"
        "assert Arrays.take is numpy.asarray\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
