"""`rueda.ray.train` under Ray Train v2 and Tune. Slow: each worker loads PyTorch and Ray's libraries."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("ray")
pytest.importorskip("pyarrow")
pytest.importorskip("torch")
os.environ["RAY_TRAIN_V2_ENABLED"] = "1"  # the default since 2.51; read when ray.train is imported
if importlib.util.find_spec("ray.train.v2") is None:
    pytest.skip("this Ray has no Ray Train v2 (2.40 has none, 2.44.1 has)", allow_module_level=True)
pytestmark = pytest.mark.slow

import ray  # noqa: E402
import ray.data  # noqa: E402
import ray.train  # noqa: E402
from ray import tune  # noqa: E402
from ray_cluster import cluster  # noqa: E402
from rueda.ray.train import RuedaConfig, RuedaTrainer  # noqa: E402

TWO = ray.train.ScalingConfig(num_workers=2)


@pytest.fixture(scope="module", autouse=True)
def one_node():
    with cluster(nodes=1, cpus=4):
        yield


def test_a_model_is_trained_on_shards_and_checkpointed(tmp_path):
    def train(config):
        import os
        import tempfile

        import ray.train
        import rueda.torch as hvd
        import torch

        hvd.init()
        assert (hvd.rank(), hvd.size()) == (ray.train.get_context().get_world_rank(), 2)
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        shard, seen = ray.train.get_dataset_shard("train"), []
        for _ in range(2):
            for batch in shard.iter_torch_batches(batch_size=8):
                x = batch["id"].float().reshape(-1, 1) / 64
                seen += batch["id"].tolist()
                optimizer.zero_grad()
                (model(x) - 2 * x).square().mean().backward()
                optimizer.step()
            everybody = sum(hvd.allgather_object(seen), [])
            weights = hvd.allgather_object(model.weight.item())
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if hvd.rank() == 0:
                    torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                metrics = {"seen": sorted(everybody), "weights": weights, "said": os.environ["SAID"]}
                ray.train.report(metrics, checkpoint=checkpoint)

    result = RuedaTrainer(
        train,
        train_loop_config={"lr": 0.1},
        rueda_config=RuedaConfig(start_timeout=60, nics={"lo"}, env_vars={"SAID": "so"}),
        scaling_config=TWO,
        run_config=ray.train.RunConfig(name="digits", storage_path=str(tmp_path)),
        datasets={"train": ray.data.range(64)},
    ).fit()
    assert result.metrics["seen"] == sorted([*range(64)] * 2), "each row once in each epoch"
    assert result.metrics["weights"][0] == result.metrics["weights"][1] and result.metrics["said"] == "so"

    import torch

    with result.checkpoint.as_directory() as folder:
        assert torch.load(f"{folder}/model.pt")["weight"].item() == result.metrics["weights"][0]


def test_workers_that_are_started_again_after_a_failure_are_ranks_again(tmp_path):
    marker = tmp_path / "failed"

    def train():
        import numpy
        import ray.train
        import rueda as hvd

        hvd.init()
        first = not marker.exists()
        hvd.barrier()
        if first and hvd.rank() == 1:
            marker.touch()
            raise OSError("a disk is full")
        total = hvd.allreduce(numpy.ones(1), op=hvd.Sum)  # rank 0 is not left waiting
        assert total == 2 and not first
        ray.train.report({})

    run = ray.train.RunConfig(storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=1))
    RuedaTrainer(train, scaling_config=TWO, run_config=run).fit()
    assert marker.exists()


def test_torch_trainer_with_the_backend_of_torch_distributed(tmp_path):
    from ray.train.torch import TorchConfig, TorchTrainer

    def train():
        import ray.train.torch
        import torch
        import torch.distributed as dist

        assert dist.get_backend() == "rueda"
        x = torch.ones(3) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 3
        model = ray.train.torch.prepare_model(torch.nn.Linear(2, 2))
        assert type(model).__name__ == "DistributedDataParallel"
        model(torch.ones(1, 2)).sum().backward()
        ray.train.report({})

    run = ray.train.RunConfig(storage_path=str(tmp_path))
    TorchTrainer(train, torch_config=TorchConfig(backend="rueda"), scaling_config=TWO, run_config=run).fit()


def test_two_trials_of_tune_each_with_workers_in_its_placement_group(tmp_path):
    def trial(config):
        from ray.util.placement_group import get_current_placement_group, placement_group_table
        from rueda.ray import RayExecutor

        def add(scale):
            import numpy
            import rueda as hvd

            hvd.init()
            return float(hvd.allreduce(numpy.full(1, scale * (hvd.rank() + 1.0)), op=hvd.Sum)[0])

        executor = RayExecutor(num_workers=2, cpus_per_worker=0.5)
        executor.start()
        try:
            sums = executor.run(add, [config["scale"]])
        finally:
            executor.shutdown()
        table = placement_group_table(get_current_placement_group())
        tune.report({"sums": sums, "bundles": len(table["bundles"])})

    needs = tune.PlacementGroupFactory([{"CPU": 0.5}] * 3)
    results = tune.Tuner(
        tune.with_resources(trial, needs),
        param_space={"scale": tune.grid_search([1, 10])},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not results.errors
    found = sorted((result.metrics["sums"], result.metrics["bundles"]) for result in results)
    assert found == [([3.0, 3.0], 3), ([30.0, 30.0], 3)]


def test_the_example_learns_the_digits():
    example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_ray.py"
    done = subprocess.run(
        [sys.executable, example, "--workers", "2", "--address", ray.get_runtime_context().gcs_address],
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"], done.stderr
    assert all(float(line.split()[-1]) > 0.9 for line in lines), lines
