"""rueda on Ray: ranks are actors. See docs/ray.md.

>>> executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
>>> executor.start()
>>> executor.run(train)          # on every rank; hvd.init() in it joins the job
>>> executor.shutdown()

`runner` is the executor, `worker` what runs in an actor, `_placement` where actors are, `_sending` and `_collecting`
how a function gets to all of them and ends there, `_checks` what is refused, `ray_logger` and `_callbacks` what ranks tell while they run. `elastic` has jobs whose ranks come and go, with
ruedarun's agents in `_agents`, `train` is Ray Train's side.
"""

try:
    import ray as _ray
except ImportError as error:
    raise ImportError(
        "rueda.ray needs Ray, which is not installed: pip install 'ray>=2.40'", name="ray"
    ) from error

if tuple(int(part) for part in _ray.__version__.split(".")[:2]) < (2, 40):
    raise ImportError(
        f"rueda.ray needs Ray 2.40 or newer, and {_ray.__version__} is installed: pip install 'ray>=2.40'",
        name="ray",
    )

from rueda.common.exceptions import RankFailed
from rueda.ray import ray_logger
from rueda.ray.elastic import ElasticRayExecutor, RayHostDiscovery
from rueda.ray.runner import RayExecutor
from rueda.ray.settings import Settings
from rueda.ray.worker import BaseWorker

__all__ = [
    "BaseWorker",
    "ElasticRayExecutor",
    "RankFailed",
    "RayExecutor",
    "RayHostDiscovery",
    "Settings",
    "ray_logger",
]
