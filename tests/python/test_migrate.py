"""``rueda migrate`` finds what differs for a script, says where and what to do."""

import pathlib
import subprocess
import sys

import pytest
from rueda import migrate
from rueda.compat import horovod

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "horovod"

# Each line that differs ends in a comment: level, then a fragment of what is said.
SCRIPT = """\
import os
import horovod.torch as hvd
import horovod.mxnet  # unsupported: horovod.mxnet is not there
import horovod.torch.elastic
from horovod.torch.elastic import TorchState
from horovod.torch.mpi_ops import synchronize, no_such_name  # unsupported: no_such_name is not
from horovod.run.runner import run  # unsupported: Horovod 0.20 made it horovod.runner
from horovod import run
from mpi4py import MPI  # differs: COMM_WORLD has size 1
import torch

hvd.init(comm=MPI.COMM_WORLD)  # unsupported: init(comm=...) needs MPI
hvd.init(None)
os.environ["HOROVOD_FUSION_THRESHOLD"] = "1"
os.environ["HOROVOD_CYCLE_TIME"] = "5"  # differs: HOROVOD_CYCLE_TIME: rueda has no cycle
os.environ["HOROVOD_ELASTIC_TIMEOUT"] = "9"
os.environ["HOROVOD_FUSION_TRESHOLD"] = "1"  # differs: no variable that Horovod reads
print(int(os.environ["HOROVOD_RANK"]))
model = torch.nn.Linear(2, 2)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())  # differs: CUDA tensors
    model.cuda()  # differs: CUDA tensors
else:
    model.cpu()
model.to("cuda:0")  # unsupported: CUDA tensors
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # differs: CUDA tensors
hvd.allreduce(model.weight, name="w", op=hvd.Sum)
hvd.allreduce(model.weight, tag=1)  # unsupported: no argument tag
hvd.no_such_function(1)  # unsupported: horovod.torch.no_such_function is not there
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # differs: no optimizer step is taken


@hvd.elastic.run
def train(state):
    if hvd.mpi_enabled():  # differs: always False
        hvd.size()
    os.system("mpirun -np 2 python other.py")  # unsupported: ruedarun
"""


def test_each_line_that_differs_is_found_and_no_other():
    expected = {}
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        if "  # " in line:
            expected[number] = line.split("  # ")[1].split(": ", 1)
    found = {finding.line: finding for finding in migrate.findings(SCRIPT)}
    assert sorted(found) == sorted(expected)
    for number, (level, fragment) in expected.items():
        finding = found[number]
        assert finding.level == level, finding
        assert fragment in f"{finding.what}; {finding.to_do}", finding
        assert finding.to_do


@pytest.mark.parametrize("text", [
    "from horovod import torch as hvd\nhvd.no_such_function(f)",
    "import horovod\nhorovod.torch.no_such_function(f)",
    "import horovod.torch\nhorovod.torch.no_such_function(f)",
    "import horovod as h\nh.torch.no_such_function(f)",
])  # fmt: skip
def test_every_way_to_import_is_followed(text):
    (finding,) = migrate.findings(text)
    assert (finding.line, finding.level) == (2, migrate.UNSUPPORTED)


def test_scripts_without_horovod_and_the_examples_are_fine():
    assert migrate.findings("import torch\nfrom . import horovod\nhvd.whatever()") == []
    scripts = [str(path) for path in sorted(EXAMPLES.glob("*.py"))]
    assert len(scripts) == 3 and migrate.main(scripts) == 0


def test_the_exit_code_says_whether_anything_is_unsupported(tmp_path, capsys):
    fine, bad, broken = (tmp_path / f"{name}.py" for name in ("fine", "bad", "broken"))
    fine.write_text("import horovod.torch as hvd\nhvd.init()\n")
    bad.write_text("import horovod.mxnet\n")
    broken.write_text("import (\n")
    assert migrate.main([str(fine)]) == 0
    assert f"{fine}: runs unchanged: ruedarun --horovod" in capsys.readouterr().out
    assert migrate.main([str(bad), str(fine)]) == 1
    printed = capsys.readouterr().out
    assert f"{bad}:1: unsupported: horovod.mxnet is not there" in printed
    assert f"{bad}: 1 unsupported" in printed
    assert migrate.main([str(bad), str(broken), str(tmp_path / "absent.py")]) == 2
    errors = capsys.readouterr().err
    assert f"{broken}: cannot be read" in errors and "absent.py: cannot be read" in errors


def test_it_is_a_part_of_the_tool_and_of_the_package(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import horovod.mxnet\n")
    starts = (
        ["-m", "rueda.migrate", str(script)],
        ["-c", "import rueda_launcher; rueda_launcher.rueda()", "migrate", str(script)],
    )
    for start in starts:
        done = subprocess.run([sys.executable, *start], capture_output=True, text=True)
        assert done.returncode == 1 and f"{script}: 1 unsupported" in done.stdout, done.stderr


def test_looking_a_script_over_does_not_run_it(tmp_path):
    migrate.findings(f"import horovod.torch\nopen({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists()
    assert horovod.path() in sys.path


def test_estimators_of_spark_are_named_and_its_executors_are_there():
    pytest.importorskip("pyspark")
    script = "import horovod.spark\nfrom horovod.spark.torch import TorchEstimator\nhorovod.spark.run(print)\n"
    found = migrate.findings(script)
    assert [(each.line, each.level) for each in found] == [(2, "unsupported")]
    assert found[0].what.startswith("horovod.spark.torch is not there: rueda has no Spark estimators")
