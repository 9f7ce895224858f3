"""Horovod's ``horovod.spark.runner``, by rueda."""

from rueda import spark as _spark


def run(
    fn,
    args=(),
    kwargs=None,
    num_proc=None,
    start_timeout=None,
    use_mpi=None,
    use_gloo=None,
    extra_mpi_args=None,
    env=None,
    stdout=None,
    stderr=None,
    verbose=1,
    nics=None,
    prefix_output_with_timestamp=False,
    executable=None,
):
    """`rueda.spark.run` with Horovod's arguments. ValueError for those that have no meaning here.

    ``use_gloo`` asks for what is always so. Output is Spark's, and so is the ranks' Python.
    """
    given = {
        "use_mpi": use_mpi,
        "extra_mpi_args": extra_mpi_args,
        "stdout": stdout,
        "stderr": stderr,
        "nics": nics,
        "prefix_output_with_timestamp": prefix_output_with_timestamp,
        "executable": executable,
    }
    unknown = [name for name, value in given.items() if value]
    if unknown:
        raise ValueError(
            f"run({unknown[0]}=...): {_WHY[unknown[0]]}; leave it out"
        )
    return _spark.run(fn, args, kwargs, num_proc, start_timeout, env, verbose)


_OUTPUT = "what ranks print goes to the logs of Spark's executors"
_WHY = {
    "use_mpi": "ranks on Spark are not started by MPI",
    "extra_mpi_args": "ranks on Spark are not started by MPI",
    "stdout": _OUTPUT,
    "stderr": _OUTPUT,
    "nics": "ranks talk by the addresses that Spark's executors have; env={'RUEDA_TCP_ADDRESS': ...} chooses another",
    "prefix_output_with_timestamp": _OUTPUT,
    "executable": "ranks run in Spark's Python; PYSPARK_PYTHON chooses another",
}
