#!/usr/bin/env python3
"""Measures what Prometheus metrics cost a step of 300 allreduces of 64 KiB.

    scripts/metrics_cost.py [--rounds 5] [--windows 20] [--build build/release]

Two ranks. Each round runs two jobs: one without `--metrics`, and one with it that is scraped once a second in every other
window of two seconds. Scraped windows are compared with the mean of their two neighbours in the same job; windows that are
not scraped with those of the job without `--metrics`. A figure is a mean with its standard error. The aims: at most 0.5 % for
scraping, 0.2 % for what is always on. Nothing else may run meanwhile.

Steps vary by more than the aims, so what can lengthen them is measured too. Ranks do the same whether they are scraped or not, and
their agent works: its processor time per second is the most that a step can be longer, if each moment of it held up all ranks.
Always on are counters: the batches and waits of a step times what one takes (`place_and_timeline_test "what counting takes"`).
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.dont_write_bytecode = True
REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "scripts"))
import built  # noqa: E402
from processor_time import launchers, processor_seconds  # noqa: E402

WINDOW = 2.0  # seconds
RANK = """
import sys, time, numpy, rueda as hvd
hvd.init()
tensors = [numpy.ones(16384, numpy.float32) for _ in range(300)]

def step():
    for handle in [hvd.allreduce_async(tensor, name=str(number)) for number, tensor in enumerate(tensors)]:
        hvd.synchronize(handle)

for _ in range(30):
    step()
hvd.barrier()
begin = time.monotonic()
if hvd.rank() == 0:
    print("up", begin, flush=True)
ends, more = [], numpy.ones(1)
while more[0]:
    for _ in range(10):
        step()
        ends.append(time.monotonic())
    more = hvd.broadcast(numpy.array([float(ends[-1] - begin < float(sys.argv[2]))]), 0, name="more")
stats = hvd.stats()
if hvd.rank() == 0:
    numpy.save(sys.argv[1], ends)
    print("batches of a step", stats["batches"] / (30 + len(ends)), flush=True)
"""


def run(metrics, windows):
    """Mean seconds of a step, and the launchers' processor seconds per second, in each window; batches of a step."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "ends.npy")
        job = subprocess.Popen(
            [os.environ["RUEDA_RUEDARUN"], "-np", "2", *(["--metrics", "0"] if metrics else []), sys.executable, "-c", RANK,
             file, str(windows * WINDOW)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        address, begin, said = None, None, []
        for line in job.stdout:
            said.append(line)
            address = address or next(iter(re.findall(r"http://\S+/metrics", line)), None)
            up = re.search(r"up (\S+)$", line)
            if up:
                begin = float(up[1])
                break
        if begin is None or (metrics and address is None):
            job.kill()
            sys.exit(f"metrics_cost: the job did not start:\n{''.join(said)}")
        reader = threading.Thread(target=lambda: said.extend(job.stdout))
        reader.start()
        taken = watch(address, begin, windows, launchers(job.pid))
        reader.join()
        batches = re.search(r"batches of a step (\S+)", "".join(said))
        if job.wait() != 0 or batches is None:
            sys.exit(f"metrics_cost: the job failed:\n{''.join(said)}")
        import numpy

        ends = numpy.load(file)
    steps, middles = numpy.diff(ends), (ends[1:] + ends[:-1]) / 2 - begin
    # What follows each tenth step is a broadcast.
    usual = numpy.arange(len(steps)) % 10 != 9
    return [float(steps[usual & (middles // WINDOW == number)].mean()) for number in range(windows)], taken, float(batches[1])


def watch(address, begin, windows, agents):
    """Reads `address` once a second, in the windows with odd numbers. The agents' processor seconds per second of each window."""
    taken = []
    for number in range(windows):
        before = sum(map(processor_seconds, agents))
        for part in (0.25, 0.75):
            time.sleep(max(0.0, begin + (number + part) * WINDOW - time.monotonic()))
            if address is None or number % 2 == 0:
                continue
            with urllib.request.urlopen(address, timeout=10) as answer:
                if b"rueda_collective_seconds" not in answer.read():
                    sys.exit("metrics_cost: /metrics lacks rueda_collective_seconds")
        time.sleep(max(0.0, begin + (number + 1) * WINDOW - time.monotonic()))
        taken.append((sum(map(processor_seconds, agents)) - before) / WINDOW)
    return taken


def counting():
    """Seconds that the counters take of a batch, and of a wait."""
    test = pathlib.Path(os.environ["RUEDA_RUEDARUN"]).parent.parent / "tests/runtime/place_and_timeline_test"
    said = subprocess.run([test, "what counting takes"], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"a batch (\S+) ns, a wait (\S+) ns", said)
    return [1e-9 * float(each) for each in found.groups()] if found else None


def told(name, shares):
    error = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
    print(f"{name}: {100 * statistics.mean(shares):+.2f} % (standard error {100 * error:.2f}, {len(shares)} pairs)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--build", default=str(built.RELEASE))
    options = parser.parse_args()
    if options.rounds < 1 or options.windows < 5:
        parser.error("--rounds at least 1, --windows at least 5")
    built.use(options.build)
    scraped, unread, without, taken, batches = [], [], [], {"without": [], "unread": [], "scraped": []}, 0
    for number in range(options.rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        found = {metrics: run(metrics, options.windows) for metrics in order}
        on, off, batches = found[True][0], found[False][0], found[False][2]
        scraped += [on[at] / ((on[at - 1] + on[at + 1]) / 2) - 1 for at in range(1, options.windows - 1, 2)]
        unread.append(statistics.median(on[::2]) / statistics.median(off[::2]) - 1)
        without += off
        taken["without"] += found[False][1]
        taken["unread"] += found[True][1][::2]
        taken["scraped"] += found[True][1][1::2]
    # Equal windows compared in the same way: what chance makes.
    chance = [without[at] / ((without[at - 1] + without[at + 1]) / 2) - 1
              for at in range(1, len(without) - 1, 2) if at % options.windows not in (0, options.windows - 1)]
    step = statistics.median(without)
    print(f"a step takes {1e3 * step:.2f} ms without metrics")
    told("scraped each second, against unread windows of the same job", scraped)
    told("the same comparison in jobs without metrics", chance)
    told("metrics that nobody reads, against jobs without", unread)
    for name, shares in taken.items():
        print(f"processor time of the agent, {name}: {100 * statistics.mean(shares):.3f} % of a core "
              f"({100 * min(shares):.3f} to {100 * max(shares):.3f})")
    each = counting()
    if each is None:
        print("what counting takes: not measured, there is no place_and_timeline_test beside this build")
        return
    # A step waits at most once for each of its operations.
    cost = batches * each[0] + 300 * each[1]
    print(f"counters, always on: {batches:.1f} batches and at most 300 waits a step, {1e6 * cost:.1f} us, {100 * cost / step:.3f} %")


if __name__ == "__main__":
    main()
