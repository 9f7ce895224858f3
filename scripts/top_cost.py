#!/usr/bin/env python3
"""Measures what `rueda top` costs: processor time of the tool and of the job's agent, per rank.

    scripts/top_cost.py [--ranks 2,16,64] [--seconds 10] [--build build/release]

Each job's ranks make a small allreduce twenty times a second. The agent's processor time (all processes of ruedarun that are no
rank, from /proc/PID/task/*/schedstat, in nanoseconds) is taken over so many seconds while nobody looks, then while
`rueda top --json` looks each second; the tool's own likewise. The aim: at most 0.1 % of a core per rank, nothing when
nobody looks.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parent.parent
for folder in ("bindings/python", "scripts"):
    sys.path.insert(0, str(REPO / folder))
import built  # noqa: E402
from processor_time import launchers, over  # noqa: E402

RANK = """
import time, numpy, rueda as hvd
hvd.init()
ones = numpy.ones(1000, numpy.float32)
hvd.barrier()
print("up", flush=True)
while True:
    hvd.allreduce(ones, name="gradient")
    time.sleep(0.05)
"""


def measure(ranks, seconds, tool):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "rank.py"
        script.write_text(RANK)
        command = [os.environ["RUEDA_RUEDARUN"], "-np", str(ranks), "--verbose", sys.executable, str(script)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        try:
            name, up = None, 0
            while up < ranks:
                line = job.stdout.readline()
                if not line:
                    sys.exit("top_cost: the job ended before all ranks were up")
                found = re.search(r"job ([0-9a-f]{16}),", line)
                name = found[1] if found and name is None else name
                up += line.rstrip().endswith("up")
            time.sleep(2)  # the step plan is in force
            agents = launchers(job.pid)
            nobody = sum(over(agents, seconds))
            top = subprocess.Popen([tool, "top", name, "--json"], stdout=subprocess.DEVNULL)
            try:
                time.sleep(1.5)
                *looked, itself = over([*agents, top.pid], seconds)
            finally:
                top.kill()
                top.wait()
            return nobody / ranks, sum(looked) / ranks, itself / ranks
        finally:
            job.terminate()
            job.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,16,64")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--build", default=str(REPO / "build/release"), help="build folder (build/release)")
    options = parser.parse_args()
    built.use(options.build)
    tool = str(pathlib.Path(os.environ["RUEDA_RUEDARUN"]).with_name("rueda"))
    print("| ranks | launcher, nobody looks | launcher, looked at | more | the tool |\n|---|---|---|---|---|")
    for ranks in map(int, options.ranks.split(",")):
        nobody, looked, itself = (100 * share for share in measure(ranks, options.seconds, tool))
        print(f"| {ranks} | {nobody:.4f} % | {looked:.4f} % | {looked - nobody:.4f} % | {itself:.4f} % |", flush=True)
    print("\nof a core, per rank")


if __name__ == "__main__":
    main()
