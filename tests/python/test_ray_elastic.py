"""`ElasticRayExecutor` on a cluster whose nodes come and go."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from expect import eventually

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

import ray  # noqa: E402
from engine_functions import count_ranks  # noqa: E402
from ray_cluster import MEMORY, cluster  # noqa: E402
from rueda.ray import ElasticRayExecutor, RankFailed  # noqa: E402


def settings(**more):
    return ElasticRayExecutor.create_settings(timeout_s=60, elastic_timeout=60, **more)


def test_ranks_come_with_a_node_and_go_with_it(tmp_path):
    with cluster(nodes=1, cpus=2) as started:
        executor = ElasticRayExecutor(settings(min_num_proc=2, max_num_proc=4))
        executor.start()
        with ThreadPoolExecutor(1) as other:
            running = other.submit(executor.run, lambda: count_ranks(1, tmp_path, [2, 4, 2]))
            here = lambda number: running.done() or (tmp_path / f"{number}.ranks").exists()  # noqa: E731
            eventually(lambda: here(2))
            node = started.add_node(num_cpus=2, object_store_memory=MEMORY)
            eventually(lambda: here(4))
            started.remove_node(node, allow_graceful=False)
            results = running.result(timeout=60)
        assert [rank for rank, _ in results] == [0, 1]
        sizes = results[0][1]
        assert sizes == results[1][1]
        assert sizes[0] == 2 and 4 in sizes and sizes[-1] == 2


def test_callbacks_hear_what_ranks_log():
    def logs():
        import rueda as hvd
        from rueda.ray import ray_logger

        hvd.init()
        for step in range(3):
            ray_logger.log({"step": step})
        ray_logger.log({"rank": hvd.rank()}, chief_only=False)
        hvd.shutdown()

    with cluster(nodes=2, cpus=1):
        heard = []
        ElasticRayExecutor(settings(min_num_proc=2, max_num_proc=2)).run(logs, callbacks=[heard.append])
        assert [info["step"] for info in heard if "step" in info] == [0, 1, 2]
        assert sorted(info["rank"] for info in heard if "rank" in info) == [0, 1]
        eventually(lambda: ray.available_resources().get("CPU") == 2)


def test_a_failing_function_names_its_rank(tmp_path):
    with cluster(nodes=1, cpus=2):

        def fail():
            import rueda as hvd

            hvd.init()
            raise KeyError("what is missing")

        with pytest.raises(RankFailed, match="KeyError: 'what is missing'"):
            ElasticRayExecutor(settings(min_num_proc=2, max_num_proc=2, reset_limit=1)).run(fail)
        few = ElasticRayExecutor.create_settings(min_num_proc=3, elastic_timeout=0.1)
        with pytest.raises(TimeoutError, match=r"no room for 3 ranks within 0.1 s; .* slots present: .*: 2"):
            ElasticRayExecutor(few).run(fail)
        eventually(lambda: ray.available_resources().get("CPU") == 2)
