"""Measures what ranks on Ray and on Spark cost beyond what Ray and Spark take themselves.

    .venv/bin/python scripts/engines_cost.py [--rounds N]

Two ranks. Ray: a cluster of two nodes that are processes of this machine; `RayExecutor.start` beside creating two
plain actors, `init` in them, an empty `run`, and how long after a rank has killed itself the driver names it. Spark:
``local[2]``; `rueda.spark.run` beside an empty barrier stage. Of what is left out one engine may be missing.
"""

import argparse
import os
import statistics
import time


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def init():
    import rueda as hvd

    return seconds(hvd.init)


def die():
    import os
    import signal

    import numpy
    import rueda as hvd

    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(numpy.ones(3), name="x")


def measure_ray(rounds):
    import ray
    from ray.cluster_utils import Cluster
    from rueda.ray import RankFailed, RayExecutor

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    found = {name: [] for name in ("two plain actors", "start", "init", "empty run", "death told")}

    @ray.remote(num_cpus=1)
    class Plain:
        def here(self):
            return os.getpid()

    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        for _ in range(rounds):
            actors = []

            def create():
                actors.extend(Plain.options(scheduling_strategy="SPREAD").remote() for _ in range(2))
                ray.get([actor.here.remote() for actor in actors])

            found["two plain actors"].append(seconds(create))
            for actor in actors:
                ray.kill(actor)
            executor = RayExecutor(num_hosts=2)
            found["start"].append(seconds(executor.start))
            found["init"].append(max(executor.run(init)))
            found["empty run"].append(seconds(lambda: executor.run(len, [[]])))
            begin = time.perf_counter()
            try:
                executor.run(die)
            except RankFailed:
                found["death told"].append(time.perf_counter() - begin)
            executor.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
    return found


def empty_stage(_):
    from pyspark import BarrierTaskContext

    BarrierTaskContext.get().barrier()
    yield None


def measure_spark(rounds):
    import rueda.spark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    context = spark.sparkContext
    found = {name: [] for name in ("empty barrier stage", "run", "init")}
    for _ in range(rounds + 1):
        stage = context.parallelize(range(2), 2).barrier().mapPartitions(empty_stage)
        found["empty barrier stage"].append(seconds(stage.collect))
        found["run"].append(
            seconds(lambda: found["init"].append(max(rueda.spark.run(init, num_proc=2, verbose=0))))
        )
    spark.stop()
    return {name: times[1:] for name, times in found.items()}  # the first starts Python's workers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    for engine, measure in (("Ray", measure_ray), ("Spark", measure_spark)):
        try:
            found = measure(rounds)
        except ImportError as error:
            print(f"{engine}: {error}")
            continue
        for name, times in found.items():
            print(
                f"{engine}: {name}: {statistics.median(times):.3f} s ({min(times):.3f}-{max(times):.3f}, n={len(times)})"
            )


if __name__ == "__main__":
    main()
