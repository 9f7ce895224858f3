"""Jobs over hosts that are network namespaces: what a host that is cut off costs, and how a newcomer's state uses a link."""

import contextlib
import sys
import time
from pathlib import Path

from elastic_times_lib import jobs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests/python"))
import namespaces  # noqa: E402

why_not = namespaces.why_not


@contextlib.contextmanager
def job_on(ruedarun, count, used, ranks, megabytes, rate=None):
    """(Lab, Watched, a function that tells the job of other hosts)."""
    with contextlib.ExitStack() as stack:
        lab = namespaces.Lab(count, number=3)
        stack.callback(lab.close)
        if rate is not None:
            for n in range(count):
                limit = ["root", "tbf", "rate", rate, "burst", "128kb", "limit", "400kb"]
                tc("qdisc", "replace", "dev", lab.cable(n), *limit)
                tc("-n", lab.hosts[n], "qdisc", "replace", "dev", "eth0", *limit)
        place = stack.enter_context(jobs.folder())
        hosts = place / "hosts"

        def use(numbers):
            fresh = place / "hosts.new"
            fresh.write_text("".join(f"{lab.hosts[n]}:{ranks}\n" for n in numbers))
            fresh.rename(hosts)

        use(used)
        command = [ruedarun, "-np", ranks * len(used), "--min-np", 1, "--host-discovery-script", f"cat {hosts}"]
        command += ["--rsh-agent", "ip netns exec", sys.executable, jobs.HERE / "rank.py", place, megabytes, "pause", 0.01]
        yield lab, stack.enter_context(jobs.started(command, place)), use


def tc(*words):
    jobs.subprocess.run(["tc", *words], check=True, capture_output=True, timeout=30)


def cut_off(ruedarun):
    """(until it was told that a host is lost, until all others had done their next step) after its cable was cut; three hosts, 10 MB."""
    with job_on(ruedarun, 3, [0, 1, 2], 1, 10) as (lab, job, _):
        job.await_("all train", lambda: job.together(3, 0))
        time.sleep(0.5)
        epoch = max(lines[-1].epoch for lines in job.steps().values())
        ranks = {member: lines[-1].rank for member, lines in job.steps().items()}
        cut = time.monotonic()
        namespaces.ip("link", "set", lab.cable(2), "down")
        told = job.await_("the loss is told", lambda: "is lost: no sign of life" in job.output() and time.monotonic())
        survivors = [member for member, rank in ranks.items() if rank != 2]
        healed = job.await_("the others go on", lambda: jobs.first_after(job, survivors, epoch))
        job.finish()
    return told - cut, healed - cut


def over_link(ruedarun, megabytes=300, rate="1gbit"):
    """Seconds of a newcomer's sync, whose host has a link of this rate."""
    with job_on(ruedarun, 2, [0], 1, megabytes, rate) as (_, job, use):
        job.await_("the first trains", lambda: job.together(1, 0))
        use([0, 1])
        job.await_("the newcomer trains", lambda: job.together(2, 0))
        took = job.lines("sync")[max(job.steps())][-1][1]
        job.finish()
    return float(took)
