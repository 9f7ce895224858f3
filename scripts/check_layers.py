#!/usr/bin/env python3
"""Checks that the sources keep to the layers of docs/design.md.

    scripts/check_layers.py [ROOT]

Rules: an include points only where an arrow points; includes are spelled from the repository root; a file's namespace
is rueda:: and its folder; nobody but the listed files reads the environment; some headers are for the launcher and the
tests alone. Each violation is one line, "file:line: rule: what", and the exit status is 1. Files above 400 lines are
warned about. Runs as a ctest test; its own test is tests/scripts/check_layers_test.py.
"""
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

# ---- the layers: folder -> what it may include besides itself. Longest folder wins. ----------------------------------
BASE, PROTO, HOST = "collectives/base", "proto", "collectives/host"
KERNELS, TRANSPORT, DESC = "collectives/kernels", "collectives/transport", "collectives/desc"
SHM, ALGORITHMS = "collectives/shm", "collectives/algorithms"
CUDA, NCCL = "collectives/cuda", "collectives/nccl"
RENDEZVOUS, MEMBERSHIP = "runtime/rendezvous", "runtime/membership"
NEGOTIATION, PLAN, ENGINE = "runtime/negotiation", "runtime/plan", "runtime/engine"
FLIGHT, LIFE, TIMELINE = "runtime/observe/flight", "runtime/observe/life", "runtime/observe/timeline"
COUNTERS, STATS = "runtime/observe/counters", "runtime/observe/stats"
ATTENTION, LAUNCHER, TOOLS = "attention", "launcher", "launcher/tools"
COMMAND, BINDING, JOB = "launcher/command", "launcher/binding", "launcher/job"
PROCESSES, OUTPUT, REPORTS = "launcher/processes", "launcher/output", "launcher/observe"
HOSTS, AGENT, CONTROLLER, MPI = "launcher/hosts", "launcher/agent", "launcher/controller", "launcher/mpi"
DECIDER = "launcher/membership"
ABI, CPP, COMPOSITION = "bindings/c/include", "bindings/cpp/include", "bindings/c"
XLA, TENSORFLOW, CALLS = "bindings/xla", "bindings/tensorflow", "bindings/calls"

COLLECTIVES = {BASE, HOST, KERNELS, TRANSPORT, DESC, SHM, ALGORITHMS, CUDA, NCCL}
OBSERVE = {COUNTERS, STATS, FLIGHT, LIFE, TIMELINE}
RUNTIME = {RENDEZVOUS, MEMBERSHIP, NEGOTIATION, PLAN, ENGINE} | OBSERVE
# What the launcher's rooms may use of what lies below the launcher.
BELOW_LAUNCHER = {BASE, HOST, PROTO, RENDEZVOUS} | OBSERVE
ROOMS = {COMMAND, BINDING, JOB, DECIDER, PROCESSES, OUTPUT, REPORTS, HOSTS, AGENT, CONTROLLER, MPI}

ARROWS: Dict[str, Set[str]] = {
    BASE: set(),
    PROTO: {BASE},
    HOST: {BASE},
    KERNELS: {BASE},
    TRANSPORT: {BASE, HOST},
    DESC: {BASE, HOST, KERNELS, TRANSPORT},
    SHM: {BASE, HOST, KERNELS, DESC},
    ALGORITHMS: {BASE, HOST, KERNELS, TRANSPORT, DESC, SHM},
    CUDA: {BASE},
    NCCL: {BASE, KERNELS, TRANSPORT, DESC, CUDA},
    RENDEZVOUS: {BASE, HOST, PROTO},
    COUNTERS: set(),
    STATS: {BASE, HOST},
    FLIGHT: {BASE, HOST, PROTO, COUNTERS, STATS},
    LIFE: {BASE, HOST},
    TIMELINE: {BASE, HOST, DESC, PROTO, ENGINE},
    MEMBERSHIP: {BASE, HOST, PROTO, TRANSPORT, SHM, ALGORITHMS, RENDEZVOUS},
    # Pure: what is agreed, and how a step plan is followed.
    PLAN: {BASE, PROTO},
    NEGOTIATION: {BASE, PROTO, PLAN},
    ENGINE: COLLECTIVES | RUNTIME | {PROTO},
    ATTENTION: {BASE, HOST, PROTO, KERNELS, CUDA, TRANSPORT, RENDEZVOUS, MEMBERSHIP, ENGINE},
    ABI: set(),
    COMPOSITION: {ABI, PROTO, ATTENTION} | COLLECTIVES | RUNTIME,
    CPP: {ABI},
    # Frameworks: they know the ABI, and share what tells them of the end of operations.
    CALLS: {ABI},
    XLA: {ABI, CALLS},
    TENSORFLOW: {ABI, CALLS},
    # The launcher: rooms, and above them the programs. The agent and the controller meet by messages only.
    COMMAND: BELOW_LAUNCHER | {BINDING},
    BINDING: BELOW_LAUNCHER,
    JOB: BELOW_LAUNCHER | {COMMAND},
    # Pure: who belongs to the next epoch.
    DECIDER: {BASE, PROTO, JOB},
    PROCESSES: BELOW_LAUNCHER | {JOB},
    OUTPUT: BELOW_LAUNCHER,
    REPORTS: BELOW_LAUNCHER | {COMMAND, JOB, OUTPUT},
    HOSTS: BELOW_LAUNCHER | {COMMAND, JOB, OUTPUT, REPORTS},
    AGENT: BELOW_LAUNCHER | {COMMAND, BINDING, JOB, PROCESSES, OUTPUT, REPORTS, HOSTS},
    CONTROLLER: BELOW_LAUNCHER | {COMMAND, JOB, DECIDER, PROCESSES, OUTPUT, REPORTS, HOSTS},
    MPI: BELOW_LAUNCHER | {COMMAND, JOB, PROCESSES, HOSTS},
    LAUNCHER: BELOW_LAUNCHER | ROOMS,
    TOOLS: {ABI, TRANSPORT, LAUNCHER} | BELOW_LAUNCHER | ROOMS,
    "examples": {ABI, CPP},
    "bindings/python/rueda/templates": {ABI, CPP},
    "tests/consumer": {ABI, CPP},
    # Tests may look at everything; no layer may look at tests.
    "tests": {PROTO, ATTENTION, LAUNCHER, TOOLS, ABI, CPP, COMPOSITION, XLA, CALLS} | ROOMS | COLLECTIVES | RUNTIME,
}
# Folders that are on the include path of those who use them: "rueda/rueda.h" lies below these.
INCLUDE_ROOTS = (ABI, CPP)
# Layers whose names live directly in namespace rueda: the vocabulary of all others, and the public header.
PLAIN_NAMESPACE = {BASE, DESC, CPP, ABI}
# Layers whose namespace is not their folder's name.
OTHER_NAMESPACE = {PROTO: "rueda::wire", COMPOSITION: "rueda::c_abi", **dict.fromkeys(ROOMS | {TOOLS}, "rueda::launcher")}
NO_NAMESPACE_RULE = ("tests", "tests/consumer", "examples", "bindings/python/rueda/templates")

# ---- who may do what ------------------------------------------------------------------------------------------------
MAY_READ_ENVIRONMENT = ("runtime/membership/place", "launcher/", "bindings/c/", "tests/")
# Header (start of its spelling) -> folders that may include it.
RESERVED_HEADERS = {
    "google/protobuf/": ("launcher/", "tests/"),
    "grpc": ("launcher/", "tests/"),
    "mpi.h": ("tests/benchmarks/", "collectives/transport/mpi/plugin"),
    "cuda": ("collectives/cuda/kernels/", "attention/cuda/", "tests/cuda/headers_test", "tests/cuda/kernels_check"),
    "nccl": ("tests/cuda/headers_test",),
    "catch2/": ("tests/",),
    "CLI/": ("launcher/", "tests/"),
}
THIRD_PARTY_IN_QUOTES = ("hwy/",)
SUFFIXES = {".h", ".hpp", ".cc", ".c", ".cu"}
MAX_LINES = 400

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\s+([A-Za-z_][\w:]*)\s*\{", re.MULTILINE)
FORWARD = re.compile(r"\s*((template\s*<[^;{}]*>\s*)?(class|struct|enum\s+class|enum)\s+[\w:\s]+;\s*)*")
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def layer_of(path: str) -> Optional[str]:
    """The layer that a path from the root belongs to: the longest folder in ARROWS."""
    owners = [layer for layer in ARROWS if path.startswith(layer + "/")]
    return max(owners, key=len) if owners else None


def without_comments_and_strings(text: str) -> str:
    """Blanks comments and literals; every line stays in place."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'',
                         re.DOTALL)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def check_includes(root: Path, path: str, layer: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, spelled = match.groups()
        for reserved, folders in RESERVED_HEADERS.items():
            if spelled.startswith(reserved) and not path.startswith(folders):
                yield Finding(path, number, "header", f"<{spelled}> is for {' and '.join(folders) or 'nobody'}")
        if spelled.endswith(".pb.h"):
            if not path.startswith(("launcher/", "tests/")):
                yield Finding(path, number, "header", f"{spelled}: libprotobuf is for launcher/ and tests/")
            continue
        places = [spelled] + [f"{folder}/{spelled}" for folder in INCLUDE_ROOTS]
        target = next((place for place in places if (root / place).is_file()), None)
        if target is None:
            if quote == '"' and not spelled.startswith(THIRD_PARTY_IN_QUOTES):
                yield Finding(path, number, "spelling", f'"{spelled}" is no file seen from the repository root')
            continue
        target_layer = layer_of(target)
        if target_layer is None:
            yield Finding(path, number, "arrow", f"{target} is in no layer (ARROWS in scripts/check_layers.py)")
        elif target_layer != layer and target_layer not in ARROWS[layer]:
            allowed = ", ".join(sorted(ARROWS[layer])) or "nothing"
            yield Finding(path, number, "arrow", f"{layer} may use {allowed}; {target} is {target_layer}")


def block_after(code: str, opening: int) -> str:
    """What stands between the brace at `opening` and the one that closes it."""
    depth = 0
    for index in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[index], 0)
        if depth == 0:
            return code[opening + 1:index]
    return code[opening + 1:]


def check_namespaces(path: str, layer: str, code: str) -> Iterator[Finding]:
    if layer in NO_NAMESPACE_RULE:
        return
    folder = Path(path).parent.name
    own = {f"rueda::{folder}", f"rueda::{Path(layer).name}"}
    if layer in PLAIN_NAMESPACE:
        own.add("rueda")
    if layer in OTHER_NAMESPACE:
        own.add(OTHER_NAMESPACE[layer])
    for match in NAMESPACE.finditer(code):
        name = match.group(1)
        nested = code.count("{", 0, match.start()) > code.count("}", 0, match.start())
        if nested or any(name == mine or name.startswith(mine + "::") for mine in own):
            continue
        # Somebody else's names may be declared, not defined.
        if name.split("::")[0] == "rueda" and FORWARD.fullmatch(block_after(code, match.end() - 1)):
            continue
        number = code.count("\n", 0, match.start()) + 1
        yield Finding(path, number, "namespace", f"{name} in {path}; expected {' or '.join(sorted(own))}")


def check_environment(path: str, code: str) -> Iterator[Finding]:
    if path.startswith(MAY_READ_ENVIRONMENT):
        return
    for match in GETENV.finditer(code):
        number = code.count("\n", 0, match.start()) + 1
        yield Finding(path, number, "environment", "getenv; settings come from collectives/base/config.h")


def sources(root: Path) -> List[str]:
    tops = {layer.split("/")[0] for layer in ARROWS}
    found = (file for top in tops for file in (root / top).rglob("*") if file.suffix in SUFFIXES)
    return sorted(file.relative_to(root).as_posix() for file in found)


def check(root: Path) -> List[Finding]:
    """All violations below root."""
    findings: List[Finding] = []
    for path in sources(root):
        layer = layer_of(path)
        text = (root / path).read_text(encoding="utf-8")
        if layer is None:
            findings.append(Finding(path, 1, "arrow", "is in no layer (ARROWS in scripts/check_layers.py)"))
            continue
        code = without_comments_and_strings(text)
        findings += check_includes(root, path, layer, text)
        findings += check_namespaces(path, layer, code)
        findings += check_environment(path, code)
    return findings


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    findings = check(root)
    for finding in findings:
        print(finding)
    paths = sources(root)
    for path in paths:
        lines = (root / path).read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            print(f"{path}: warning: {lines} lines; more than {MAX_LINES} are hard to read in one go")
    print(f"{len(paths)} files, {len(findings)} violations")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
