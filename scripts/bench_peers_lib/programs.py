"""How each program is started on N ranks, and what it answered. Every child has a deadline and a session of its own, which
is ended as a whole when the deadline passes."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, List, Optional

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build" / "bench"
RELEASE = BUILD / "release"
SOURCES = REPO / "tests" / "benchmarks"
HOROVOD = BUILD / "horovod" / "bin"


class Programs:
    def __init__(self, python: str, seconds: float, iterations: int, timeout: float):
        self._python, self._timeout = python, timeout
        self._base = dict(
            os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
            RUEDA_LIBRARY=str(RELEASE / "lib" / "librueda.so"), PYTHONPATH=str(REPO / "bindings" / "python"),
            RUEDA_BENCH_LIBRARY=str(RELEASE / "bench" / "libbench_meeting.so"), RUEDA_BENCH_SECONDS=str(seconds),
            PYTHONDONTWRITEBYTECODE="1")
        if iterations:
            self._base["RUEDA_BENCH_ITERATIONS"] = str(iterations)
        self._seconds, self._iterations = seconds, iterations
        self.about: Dict[str, dict] = {}  # program -> versions, as it said itself

    def missing(self, program: str) -> Optional[str]:
        """Why this program cannot run here, or None."""
        library = program.replace("-persistent", "")
        if library in ("openmpi", "mpich", "gloo"):
            return None if (RELEASE / "bench" / f"bench_{library}").exists() else "not built (scripts/bench_peers --setup)"
        if program.startswith("horovod"):
            return None if (HOROVOD / "horovodrun").exists() else "Horovod is not built (scripts/bench_peers --setup)"
        return None

    def command(self, program: str, ranks: int, cases: List[str]) -> List[str]:
        ruedarun = [str(RELEASE / "bin" / "ruedarun"), "-np", str(ranks), "--no-prefix"]
        torchrun = [self._python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        horovodrun = [str(HOROVOD / "horovodrun"), "--gloo", "-np", str(ranks), "--network-interface", "lo",
                      str(HOROVOD / "python")]
        bind = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) else ["--bind-to", "core"]
        mpirun = ["mpirun.openmpi", "--allow-run-as-root", *bind, "-np", str(ranks)]
        milliseconds = [case.split(":")[-1].replace("ms", "") for case in cases]
        if program == "rueda":
            effort = ["--seconds", str(self._seconds)]
            effort += ["--iterations", str(self._iterations)] if self._iterations else []
            listed = [word for case in cases for word in ("--case", case)]
            return [*ruedarun, str(RELEASE / "bin" / "rueda"), "bench", "--json", "-", *effort, *listed]
        how = ["--persistent"] if program.endswith("-persistent") else []
        if program.startswith("openmpi"):
            return [*mpirun, str(RELEASE / "bench" / "bench_openmpi"), *how, *cases]
        if program.startswith("mpich"):
            return ["mpirun.mpich", "-bind-to", "core", "-np", str(ranks), str(RELEASE / "bench" / "bench_mpich"), *how,
                    *cases]
        if program == "gloo":
            # torchrun only sets RANK and WORLD_SIZE; --no-python runs any program.
            return [*torchrun, "--no-python", str(RELEASE / "bench" / "bench_gloo"), *cases]
        script = {"gradients": "peer_gradients.py", "idle": "peer_idle.py"}.get(program.rsplit("-", 1)[-1], "peer_torch.py")
        script = {"ddp-gloo": "peer_gradients.py", "c10d": "peer_c10d.py", "sharded": "peer_sharded.py"}.get(program, script)
        if program == "scaling":
            return [*ruedarun, self._python, str(SOURCES / "scaling_rank.py"), *cases]
        if program in ("c10d", "sharded"):
            return [*torchrun, str(SOURCES / script), *cases]
        arguments = {"peer_gradients.py": milliseconds, "peer_idle.py": [], "peer_torch.py": cases}[script]
        name = "rueda" if program.startswith("rueda") else "horovod" if program.startswith("horovod") else "gloo"
        tail = [str(SOURCES / script), name, *arguments]
        if name == "rueda":
            return [*ruedarun, self._python, *tail]
        if name == "gloo":
            return [*torchrun, *tail]
        if "mpi" in program:
            return [*mpirun, str(HOROVOD / "python"), *tail]
        return [*horovodrun, *tail]

    def run(self, program: str, ranks: int, cases: List[str]) -> Dict[str, dict]:
        """case -> its row. A program that fails gives rows that say why."""
        why = self.missing(program)
        if why:
            return {case: {"unavailable": why} for case in cases}
        with tempfile.TemporaryDirectory(prefix="rueda-bench-", dir="/dev/shm") as folder:
            os.mkdir(folder + "/store")
            env = dict(self._base, RUEDA_BENCH_MEETING=folder + "/meeting", RUEDA_BENCH_STORE=folder + "/store")
            if program == "scaling" or cases[0].startswith(("gradients", "ddp", "sgd")):
                # Whether freed gradients stay in the process is luck otherwise, and new pages cost as much as reducing.
                env.update(MALLOC_MMAP_THRESHOLD_="4000000000", MALLOC_TRIM_THRESHOLD_="4000000000",
                           MALLOC_TOP_PAD_="100000000")
            if program.startswith("horovod"):
                del env["PYTHONPATH"]
                env["PATH"] = f"{HOROVOD}:{env['PATH']}"
                env["HOROVOD_CYCLE_TIME"] = "0.1" if "0.1ms" in program else "1"
                if "mpi" in program:
                    env.update(HOROVOD_CPU_OPERATIONS="MPI", HOROVOD_CONTROLLER="mpi")
            rows, failure = self._collect(self.command(program, ranks, cases), env)
        if "about" in rows:
            self.about[program] = rows["about"]["about"]
        return {case: rows.get(case, {"unavailable": failure or "no answer for this case"}) for case in cases}

    def _collect(self, command: List[str], env: Dict[str, str]):
        if shutil.which(command[0]) is None:
            return {}, f"{command[0]} is not there"
        child = subprocess.Popen(command, env=env, cwd=str(REPO), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True, stdin=subprocess.DEVNULL)
        failure = ""
        try:
            output, errors = child.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            failure = f"did not end within {self._timeout:.0f} s"
            output, errors = self._end(child)
        finally:
            if child.poll() is None:  # we are being ended ourselves
                self._end(child)
        if child.returncode and not failure:
            lines = [line for line in errors.splitlines() if line.strip()]
            wanted = [line for line in lines if "rror" in line or "rueda bench" in line] or lines
            failure = f"exit code {child.returncode}: {wanted[-1][:200] if wanted else 'no message'}"
        return self._rows(output), failure

    @staticmethod
    def _end(child):
        """Asks the launcher to end its ranks; then ends what is left of the child's own session."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            try:
                os.killpg(child.pid, number) if number == signal.SIGKILL else child.send_signal(number)
                return child.communicate(timeout=patience)
            except (subprocess.TimeoutExpired, ProcessLookupError):
                continue
        child.stdout.close()
        child.stderr.close()
        return "", ""

    @staticmethod
    def _rows(output: str) -> Dict[str, dict]:
        rows = {}
        if output.lstrip().startswith("{"):
            try:
                return {row["case"]: row for row in json.loads(output)["rows"]}
            except (ValueError, KeyError):
                return {}
        for line in output.splitlines():
            # horovodrun puts "[0]<stdout>:" in front.
            _, found, text = line.partition("ROW ")
            if found:
                row = json.loads(text)
                rows[row.get("case", "about")] = row
        return rows
