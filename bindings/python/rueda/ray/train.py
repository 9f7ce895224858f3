"""rueda under Ray Train: `RuedaTrainer`, where HorovodTrainer was, and `RuedaConfig` for trainers of your own.

>>> RuedaTrainer(train_loop, scaling_config=ray.train.ScalingConfig(num_workers=2)).fit()

Every worker of Ray Train is a rank, with Ray's number; ``hvd.init()`` in the training loop joins the job.
"""

import secrets
from dataclasses import dataclass, field
from typing import Dict, Optional

import ray
from rueda import _meeting
from rueda.ray import _checks, worker

try:
    from ray.train import BackendConfig as _BackendConfig
    from ray.train import RunConfig as _RunConfig
    from ray.train import ScalingConfig as _ScalingConfig
    from ray.train.backend import Backend as _Backend
    from ray.train.v2.api.config import RunConfig as _RunConfigOfV2
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer as _Trainer
except ImportError as error:
    raise ImportError(
        "rueda.ray.train needs Ray Train v2, which is not installed, or not whole: pip install 'ray[train]>=2.44'",
        name="ray",
    ) from error

__all__ = ["RuedaConfig", "RuedaTrainer"]


@dataclass
class RuedaConfig(_BackendConfig):
    """What makes the workers of a trainer of Ray Train ranks of one job.

    Parameters
    ----------
    start_timeout : float, optional
        Seconds that ranks wait for each other in ``init``; default: ``RUEDA_START_TIMEOUT``, 120.
    nics : collection of str, optional
        Names of network interfaces; ranks meet and talk over the first of them that has an IPv4 address.
    env_vars : dict, optional
        Variables for the ranks' environment.

    Raises
    ------
    ValueError
        A start_timeout that is no time, or nics that are no names.
    """

    start_timeout: Optional[float] = None
    nics: Optional[frozenset] = None
    env_vars: Dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if self.start_timeout is not None:
            _checks.seconds("RuedaConfig", "start_timeout", self.start_timeout)
        self.nics = _checks.interfaces("RuedaConfig", self.nics)

    @property
    def backend_cls(self):
        return _RuedaBackend

    def to_dict(self):
        return {"start_timeout": self.start_timeout, "nics": sorted(self.nics or ())}


class _RuedaBackend(_Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group, backend_config):
        """Tells every worker its place. The key goes as an argument of a task."""
        interfaces = backend_config.nics
        facts = worker_group.execute(worker.facts, interfaces)
        places = _meeting.places(
            f"ray-{secrets.token_hex(16)}", facts, _meeting.new_key(), by_port=bool(interfaces)
        )
        begun, told = [], _meeting.variables(facts)
        for rank, place in enumerate(places):
            variables = {**(backend_config.env_vars or {}), **told[rank]}
            if backend_config.start_timeout is not None:
                variables["RUEDA_START_TIMEOUT"] = backend_config.start_timeout
            if interfaces:
                variables["RUEDA_TCP_ADDRESS"] = facts[rank]["address"]
            begun.append(worker_group.execute_single_async(rank, worker.begin, place, variables))
        ray.get(begun)

    def on_shutdown(self, worker_group, backend_config):
        worker_group.execute(worker.end)


class RuedaTrainer(_Trainer):
    """Data-parallel training on Ray Train, with rueda between the workers.

    Parameters
    ----------
    train_loop_per_worker : callable
        Without parameters, or with ``train_loop_config``. It calls ``hvd.init()`` of rueda.torch, rueda.jax, ...
    train_loop_config : dict, optional
    rueda_config : RuedaConfig, optional
    scaling_config, run_config, datasets, dataset_config
        Ray's: how many workers with what; name, storage and what is done after failures; data for
        ``ray.train.get_dataset_shard``.

    Raises
    ------
    RuntimeError
        Ray Train v2 is switched off, as it is by default before Ray 2.51.
    """

    def __init__(
        self,
        train_loop_per_worker,
        *,
        train_loop_config=None,
        rueda_config=None,
        scaling_config=None,
        run_config=None,
        datasets=None,
        dataset_config=None,
        **more,
    ):
        if _RunConfig is not _RunConfigOfV2:
            raise RuntimeError(
                f"RuedaTrainer stands on Ray Train v2, which is switched off in this Ray {ray.__version__}: set "
                "RAY_TRAIN_V2_ENABLED=1 in the environment before ray.train is imported"
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=rueda_config or RuedaConfig(),
            scaling_config=scaling_config or _ScalingConfig(num_workers=1),
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            **more,
        )
