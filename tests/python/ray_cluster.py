"""A small cluster of Ray on this machine, for a test module: nodes that are processes, no dashboard, bounded memory."""

import contextlib
import os
import pathlib

import rueda

PATHS = [str(pathlib.Path(rueda.__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]
MEMORY = 80 << 20  # bytes of each node's object store; Ray's least


@contextlib.contextmanager
def cluster(nodes=2, cpus=2, **more):
    """Starts it, connects to it and gives Ray's Cluster; all of its processes have ended afterwards."""
    before = dict(os.environ)
    # Workers are to import this rueda and functions of tests; nothing is to leave this machine.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*PATHS, before.get("PYTHONPATH")]))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": MEMORY, **more}
    started = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            started.add_node(wait=False, **node)
        started.wait_for_nodes()
        ray.init(address=started.address, log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        os.environ.clear()
        os.environ.update(before)
