"""What Horovod has and rueda has not: importing it, or a part of it, says in one sentence what to do instead."""

import importlib.abc
import importlib.machinery
import sys

_NO_SERVICES = "rueda has no services that unpickle what they are sent; start jobs with ruedarun or horovod.run()"
_NO_MPIRUN = "rueda starts ranks itself, for MPI too (docs/launchers.md); start jobs with ruedarun or horovod.run()"
_NO_EXTENSION = "rueda has no extension that is compiled against PyTorch; use the functions of horovod.torch"
_NO_ESTIMATORS = (
    "rueda has no Spark estimators; prepare the data with Spark, write it where the tasks can read it, and train with "
    "horovod.spark.run(fn) (docs/spark.md)"
)
_NO_DRIVER = (
    "hosts are found by a script: horovodrun --host-discovery-script, or horovod.run(); what a program needs is in "
    "horovod.torch.elastic"
)

PARTS = {
    "horovod.tensorflow.data": "rueda does not start services of tf.data; use tf.data, sharded by rank",
    "horovod.tensorflow.gradient_aggregation": "use backward_passes_per_step of DistributedOptimizer",
    "horovod.tensorflow.gradient_aggregation_eager": "use backward_passes_per_step of DistributedOptimizer",
    "horovod.tensorflow.mpi_lib": "rueda has no extension that is compiled against TensorFlow; use the functions of horovod.tensorflow",
    "horovod._keras": "it is Horovod's own; use horovod.keras",
    "horovod.mxnet": "MXNet is retired and rueda has no surface for it; its arrays travel as NumPy's (import rueda), and "
    "other programs call the C ABI (rueda.h)",
    **dict.fromkeys(
        ("horovod.spark.torch", "horovod.spark.keras", "horovod.spark.lightning", "horovod.spark.tensorflow",
         "horovod.spark.common", "horovod.spark.data_loaders"),
        _NO_ESTIMATORS,
    ),
    **dict.fromkeys(
        ("horovod.spark.driver", "horovod.spark.task", "horovod.spark.gloo_run", "horovod.spark.mpi_run"), _NO_SERVICES
    ),
    "horovod.spark.conf": "settings of a barrier stage are Spark's own; give them to SparkSession.builder.config()",
    "horovod.ray.strategy": "where workers are is said by num_workers, or num_hosts and num_workers_per_host",
    "horovod.ray.adapter": "use horovod.ray.RayExecutor",
    "horovod.ray.driver_service": _NO_SERVICES,
    "horovod.ray.utils": "use ray.util",
    "horovod.data": "rueda.data reads and shares out data for every framework (docs/data.md); torch.utils.data works as before",
    "horovod.run": "Horovod 0.20 made it horovod.runner, and horovod.run a function; import from there",
    "horovod.torch.mpi_lib": _NO_EXTENSION,
    "horovod.torch.mpi_lib_impl": _NO_EXTENSION,
    "horovod.torch.mpi_lib_v2": _NO_EXTENSION,
    "horovod.common.gradient_aggregation": "use backward_passes_per_step of DistributedOptimizer",
    "horovod.runner.driver": _NO_SERVICES,
    "horovod.runner.task": _NO_SERVICES,
    "horovod.runner.task_fn": _NO_SERVICES,
    "horovod.runner.run_task": _NO_SERVICES,
    "horovod.runner.common.service": _NO_SERVICES,
    "horovod.runner.http": "rueda's ranks meet through their launcher, without an HTTP server that unpickles what it is "
    "sent; start jobs with ruedarun, or another launcher's environment (docs/launchers.md)",
    "horovod.runner.elastic.discovery": "hosts are found by a script: horovodrun --host-discovery-script; on Ray by any "
    "object with find_available_hosts_and_slots(), such as a horovod.ray.RayHostDiscovery (docs/ray.md)",
    "horovod.runner.elastic.driver": _NO_DRIVER,
    "horovod.runner.elastic.registration": _NO_DRIVER,
    "horovod.runner.elastic.rendezvous": _NO_DRIVER,
    "horovod.runner.elastic.settings": _NO_DRIVER,
    "horovod.runner.gloo_run": "rueda uses no Gloo; start jobs with ruedarun or horovod.run()",
    "horovod.runner.mpi_run": _NO_MPIRUN,
    "horovod.runner.js_run": _NO_MPIRUN,
    "horovod.runner.common.util.address": "rueda finds the ranks' addresses itself; use Python's socket",
    "horovod.runner.common.util.config_parser": "pass horovodrun --config-file FILE, which reads it",
    "horovod.runner.common.util.network": _NO_SERVICES,
    "horovod.runner.common.util.settings": "pass these settings to horovod.run() as arguments, or to horovodrun as flags",
    "horovod.runner.util.cache": "rueda remembers nothing of earlier jobs; leave it out",
    "horovod.runner.util.lsf": "rueda does not ask LSF for its hosts; name them with horovodrun -H or --hostfile",
    "horovod.runner.util.network": "rueda finds the ranks' addresses itself; use Python's socket",
    "horovod.runner.util.remote": "agents on other hosts are started by ruedarun (docs/hosts.md); use ssh yourself",
    "horovod.runner.util.streams": "it is a part of the services that rueda has not; use os.pipe",
}  # fmt: skip


class _Refusal(importlib.abc.Loader):
    """A module that cannot be loaded, as of a package that is broken: `find_spec` finds it, `import` says why not."""

    def create_module(self, spec):
        raise ImportError(f"{spec.name} is not there: {PARTS[spec.name]}", name=spec.name)

    def exec_module(self, module):
        """Never reached."""


class Finder(importlib.abc.MetaPathFinder):
    """Comes last, so it answers for what no file answers."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, _Refusal()) if name in PARTS else None


def install():
    if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.append(Finder())
