"""What differs for a Horovod script that is to run on rueda.

    rueda migrate SCRIPT...              the same as python -m rueda.migrate SCRIPT...
    rueda migrate checkpoint FROM TO     another's checkpoint as rueda's (rueda.torch.sharding._converting)

Reads the scripts without running them and prints one line for each finding: where, how bad, what,
and what to do. ``differs`` works, but not quite as before; ``unsupported`` fails or does something
else. Exit code: 0, or 1 if anything is unsupported, or 2 if a script cannot be read.

Only what is spelled out can be seen: names that reach Horovod through variables, getattr or other
modules are not.
"""

import argparse
import ast
import importlib
import importlib.util
import inspect
import sys
from typing import NamedTuple

from rueda.compat import horovod, variables

UNSUPPORTED, DIFFERS = "unsupported", "differs"


class Finding(NamedTuple):
    line: int
    level: str
    what: str
    to_do: str


# Names of Horovod (and all that begins with them and a dot) that a script should know about. What
# is simply not there needs no row.
_NAMES = {
    "horovod.torch.broadcast_optimizer_state": (
        DIFFERS,
        "no optimizer step is taken to fill an empty state; the root's state travels as it is",
        "nothing to do, unless the script reads the state before the first step",
    ),
    "horovod.torch.mpi_enabled": (DIFFERS, "always False: there is no MPI", "nothing to do"),
    "horovod.torch.mpi_built": (DIFFERS, "always False: there is no MPI", "nothing to do"),
    "horovod.torch.mpi_threads_supported": (
        DIFFERS,
        "raises ValueError, as Horovod without MPI does",
        "ask mpi_enabled() first",
    ),
    "horovod.torch.nccl_built": (DIFFERS, "always 0: CUDA tensors are new and not proven yet (docs/gpu.md)", "nothing to do"),
    "horovod.torch.cuda_built": (DIFFERS, "always False: CUDA tensors are new and not proven yet (docs/gpu.md)", "nothing to do"),
}
_NO_GPU = "CUDA tensors are new in rueda and have not been run on a GPU yet (docs/gpu.md)"
_KEEP_ON_CPU = "keep tensors that are reduced on the CPU"
_CUDA_CALLS = ("cuda", "set_device")


def findings(text, path="<script>"):
    """What differs for a script, by line; SyntaxError if it is not Python."""
    reader = _Reader()
    reader.visit(ast.parse(text, path))
    return sorted(set(reader.found))


def _canonical(name):
    """``horovod.torch.mpi_ops.rank`` is ``horovod.torch.rank``."""
    parts = name.split(".")
    submodules = ("mpi_ops", "functions", "optimizer", "compression", "sync_batch_norm")
    if parts[:2] == ["horovod", "torch"] and len(parts) > 3 and parts[2] in submodules:
        del parts[2]
    return ".".join(parts)


class _Reader(ast.NodeVisitor):
    def __init__(self):
        self.found = []
        self._names = {}  # of the script -> dotted names of Horovod
        self._asked_for_cuda = 0  # depth of branches that a test of CUDA guards

    def _add(self, node, level, what, to_do):
        self.found.append(Finding(node.lineno, level, what, to_do))

    # Imports and uses of Horovod's names.

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.split(".")[0] == "horovod":
                self._names[alias.asname or "horovod"] = alias.name if alias.asname else "horovod"
                self._check(node, alias.name)
            self._check_mpi4py(node, alias.name)

    def visit_ImportFrom(self, node):
        module = node.module or ""
        self._check_mpi4py(node, module)
        if node.level or module.split(".")[0] != "horovod":
            return
        for alias in node.names:
            name = module if alias.name == "*" else f"{module}.{alias.name}"
            self._names[alias.asname or alias.name] = name
            self._check(node, name)

    def _check_mpi4py(self, node, module):
        if module.split(".")[0] == "mpi4py":
            self._add(
                node,
                DIFFERS,
                "mpi4py: ranks are not MPI processes of one world, so COMM_WORLD has size 1",
                "use hvd.rank(), hvd.size() and rueda's collectives, send and recv",
            )

    def _dotted(self, node):
        """The name of Horovod that an expression spells, or None."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return base and f"{base}.{node.attr}"
        return None

    def visit_Attribute(self, node):
        name = self._dotted(node)
        if name:
            self._check(node, name)
        else:
            self.generic_visit(node)

    def _check(self, node, name):
        name = _canonical(name)
        for known, (level, what, to_do) in _NAMES.items():
            if name == known or name.startswith(known + "."):
                self._add(node, level, f"{name}: {what}", to_do)
                return
        problem = _look_up(name)[1]
        if problem:
            self._add(node, UNSUPPORTED, problem, "leave it out, or see docs/migrating.md")

    # Calls.

    def visit_Call(self, node):
        name = self._dotted(node.func)
        if name:
            self._check_call(node, _canonical(name))
        elif isinstance(node.func, ast.Attribute):
            self._check_cuda_call(node)
        self.generic_visit(node)

    def _check_call(self, node, name):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if name.endswith(".init"):
            comm = keywords.get("comm", node.args[0] if node.args else None)
            if comm is not None and not (isinstance(comm, ast.Constant) and comm.value is None):
                self._add(node, UNSUPPORTED, "init(comm=...) needs MPI", "leave comm out")
        function = _look_up(name)[0]
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return
        if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            return
        for keyword in keywords:
            if keyword not in parameters:
                self._add(node, UNSUPPORTED, f"{name} has no argument {keyword}", "leave it out")

    def _check_cuda_call(self, node):
        attribute = node.func.attr
        is_cuda = attribute in _CUDA_CALLS and not (
            attribute == "set_device" and "cuda" not in ast.dump(node.func)
        )
        if attribute in ("to", "device"):
            is_cuda = any(_is_cuda_string(argument) for argument in node.args)
        if is_cuda:
            asks = any(isinstance(part, ast.IfExp) for part in ast.walk(node))
            level = DIFFERS if self._asked_for_cuda or asks else UNSUPPORTED
            self._add(node, level, f"{ast.unparse(node)}: {_NO_GPU}", _KEEP_ON_CPU)

    def _visit_branch(self, node, test, guarded):
        self.visit(test)
        is_question = "cuda" in ast.dump(test).lower()
        self._asked_for_cuda += is_question
        for child in guarded:
            self.visit(child)
        self._asked_for_cuda -= is_question
        for child in node.orelse if isinstance(node.orelse, list) else [node.orelse]:
            self.visit(child)

    def visit_If(self, node):
        self._visit_branch(node, node.test, node.body)

    def visit_IfExp(self, node):
        self._visit_branch(node, node.test, [node.body])

    # Words in strings.

    def visit_Constant(self, node):
        if not isinstance(node.value, str):
            return
        word = node.value
        variable = variables.BY_NAME.get(word)
        if variable is not None and variable.fate == variables.WARNED:
            self._add(node, DIFFERS, f"{word}: {variable.what}", "leave it out")
        elif variable is None and word.startswith("HOROVOD_") and word.isidentifier():
            self._add(node, DIFFERS, f"{word} is no variable that Horovod reads", "check its name")
        elif word.split()[:1] == ["mpirun"]:
            self._add(node, UNSUPPORTED, "mpirun: ranks are not started by MPI", "use ruedarun")


def _is_cuda_string(node):
    words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return any(isinstance(word, str) and word.split(":")[0] == "cuda" for word in words)


def _look_up(name):
    """(what a name of Horovod is here, None), or (None, why there is nothing)."""
    if horovod.path() not in sys.path:
        sys.path.insert(0, horovod.path())
    parts = name.split(".")
    try:
        found = importlib.import_module(parts[0])
        for at in range(1, len(parts)):
            module = ".".join(parts[: at + 1])
            is_run = module == name == "horovod.run"  # the function; the package of old is not there
            if not is_run and inspect.ismodule(found) and importlib.util.find_spec(module) is not None:
                found = importlib.import_module(module)
            else:
                found = getattr(found, parts[at])
    except AttributeError:
        return None, f"{name} is not there"
    except ImportError as error:
        if (error.name or "").split(".")[0] in ("horovod", "rueda"):
            return None, str(error)
        return None, None  # PyTorch is not installed here: nothing can be said
    return found, None


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["checkpoint"]:
        from rueda.torch.sharding._converting import main as convert

        return convert(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="rueda migrate",
        description="Lists what differs for Horovod scripts that are to run on rueda.",
        epilog="rueda migrate checkpoint FROM TO converts a checkpoint. Exit code: 0; 1 if anything is unsupported; 2 if a script cannot be read.",
    )
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT")
    code = 0
    for path in parser.parse_args(arguments).scripts:
        try:
            with open(path, encoding="utf-8") as script:
                found = findings(script.read(), path)
        except (OSError, SyntaxError, ValueError) as error:
            print(f"{path}: cannot be read: {error}", file=sys.stderr)
            code = 2
            continue
        for finding in found:
            print(f"{path}:{finding.line}: {finding.level}: {finding.what}; {finding.to_do}")
        unsupported = sum(finding.level == UNSUPPORTED for finding in found)
        if unsupported:
            print(f"{path}: {unsupported} unsupported")
            code = max(code, 1)
        else:
            print(f"{path}: runs unchanged: ruedarun --horovod -np N python {path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
