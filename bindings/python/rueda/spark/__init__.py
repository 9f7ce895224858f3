"""rueda on Spark: ranks are the tasks of a barrier stage. See docs/spark.md.

>>> rueda.spark.run(train, num_proc=4)      # in the driver, with a session; hvd.init() in train joins the job

`runner` is the driver's side, `_task` what each task does.
"""

try:
    import pyspark as _pyspark
except ImportError as error:
    raise ImportError(
        "rueda.spark needs Spark, which is not installed: pip install 'pyspark>=3.5'", name="pyspark"
    ) from error

if tuple(int(part) for part in _pyspark.__version__.split(".")[:2]) < (3, 5):
    raise ImportError(
        f"rueda.spark needs Spark 3.5 or newer, and {_pyspark.__version__} is installed: "
        "pip install 'pyspark>=3.5'",
        name="pyspark",
    )

from rueda.common.exceptions import RankFailed
from rueda.spark.runner import run

__all__ = ["RankFailed", "run"]

_REFUSED = {
    "run_elastic": "rueda has no elastic jobs on Spark: a barrier stage cannot change its size. Use run(), or "
    "ruedarun --min-np (docs/elastic.md)",
    **dict.fromkeys(
        ("TorchEstimator", "KerasEstimator", "TorchModel", "KerasModel", "Store", "SparkBackend"),
        "rueda has no Spark estimators: prepare the data with Spark, write it where the tasks can read it, and train "
        "with rueda.spark.run(fn) (docs/spark.md)",
    ),
}


def __getattr__(name):
    if name in _REFUSED:
        raise ImportError(f"rueda.spark.{name} is not there: {_REFUSED[name]}", name=f"rueda.spark.{name}")
    raise AttributeError(f"module 'rueda.spark' has no attribute {name!r}")
