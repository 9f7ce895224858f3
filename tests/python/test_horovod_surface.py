"""``import horovod.torch`` by rueda has Horovod's names, parameters, defaults and errors."""

import pickle
import builtins
import importlib.util

import horovod_facts as facts
import pytest
from expect import raises
from signatures import differences, load, parameters
from worlds import ranks


@pytest.mark.parametrize("module", facts.SIGNATURES)
def test_names_parameters_and_defaults_are_horovods(module):
    assert differences(load(module), facts.SIGNATURES[module]) == {}


def test_horovod_run_has_horovods_parameters():
    assert parameters(load("horovod").run)[: len(facts.RUN.split(", "))] == facts.RUN.split(", ")


def test_numbers_and_classes_are_horovods():
    hvd = load("horovod.torch")
    operations = [getattr(hvd, n) for n in ("Average", "Sum", "Adasum", "Min", "Max", "Product")]
    assert operations == [0, 1, 2, 3, 4, 5]
    exceptions = load("horovod.common.exceptions")
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert exceptions.HorovodInternalError is hvd.HorovodInternalError
    assert exceptions.HostsUpdatedInterrupt(skip_sync=True).skip_sync is True
    mismatch = exceptions.HorovodVersionMismatchError("torch", "1.0", "2.0")
    copied = pickle.loads(pickle.dumps(mismatch))
    assert str(copied) == str(mismatch) and copied.installed_version == "2.0"
    assert issubclass(exceptions.HorovodVersionMismatchError, ImportError)
    assert hvd.global_process_set.process_set_id == 0
    for name in facts.PROCESS_SET_ATTRIBUTES:
        assert hasattr(hvd.global_process_set, name), name
    import rueda.torch

    assert hvd.allreduce is rueda.torch.allreduce  # one implementation, two names


def test_build_questions_have_answers_before_init():
    hvd, util = load("horovod.torch"), load("horovod.common.util")
    for module in (hvd, util):
        assert module.gloo_built() is True
        assert module.nccl_built() == 0
        for name in ("mpi_built", "ddl_built", "ccl_built"):
            assert getattr(module, name)() is False, name
    assert not hvd.cuda_built() and not hvd.rocm_built()
    assert not hvd.mpi_enabled() and hvd.gloo_enabled()
    with pytest.raises(ValueError, match="MPI is not enabled"):
        hvd.mpi_threads_supported()
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    found = importlib.util.find_spec("tensorflow") is not None
    assert util.extension_available("tensorflow") == found
    assert not util.gpu_available("torch") and not hvd._check_has_gpu()
    basics = load("horovod.common.basics").HorovodBasics(__file__, "mpi_lib_v2")
    assert basics.gloo_built() and not basics.is_initialized()
    assert load("horovod.torch.mpi_ops")._basics.nccl_built() == 0


def test_helpers_do_what_horovods_do(monkeypatch):
    import os

    util = load("horovod.common.util")
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert [n for n in range(9) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    monkeypatch.setenv("RUEDA_TEST_KEPT", "before")
    monkeypatch.delenv("RUEDA_TEST_NEW", raising=False)
    with util.env(RUEDA_TEST_KEPT="within", RUEDA_TEST_NEW="1", RUEDA_TEST_NONE=None):
        assert os.environ["RUEDA_TEST_KEPT"] == "within" and os.environ["RUEDA_TEST_NEW"] == "1"
        assert "RUEDA_TEST_NONE" not in os.environ
    assert os.environ["RUEDA_TEST_KEPT"] == "before" and "RUEDA_TEST_NEW" not in os.environ
    newer = util.is_version_greater_equal_than
    assert newer("2.10.0+cpu", "2.9.1") and newer("1.13", "1.13.0") and newer("2.1.0", "2.1.0")
    assert not newer("2.1.0rc1", "2.1.0") and not newer("1.9.1", "1.10.0")
    for wrong in ((2, "1.0.0"), ("2.0.0", "1.0"), ("new", "1.0.0")):
        with pytest.raises(ValueError):
            newer(*wrong)
    calls = []
    remembered = util._cache(lambda key: calls.append(key) or len(calls))
    assert [remembered("a"), remembered("a"), remembered("b")] == [1, 1, 2]
    util.check_installed_version("torch", "0.4.0")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="horovod.mxnet is not there: rueda serves PyTorch"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")


def test_elastic_is_one_module_under_both_names():
    elastic, state = load("horovod.torch.elastic"), load("horovod.torch.elastic.state")
    assert elastic.TorchState is state.TorchState is load("rueda.torch").elastic.TorchState
    assert elastic.ElasticSampler is load("horovod.torch.elastic.sampler").ElasticSampler
    assert state.get_handler_registry()[0][1] is state.ModelStateHandler
    import torch

    step = torch.optim.lr_scheduler.StepLR
    schedulers = [handler for kind, handler in state.get_handler_registry() if issubclass(step, kind)]
    assert schedulers == [state.LRSchedulerStateHandler]
    ours = load("rueda.torch").elastic
    assert all(getattr(elastic, name) is getattr(ours, name) for name in ours.__all__)


def test_a_state_has_horovods_methods_and_leaves_all_other_names_to_the_script():
    elastic = load("horovod.common.elastic")
    for kind in (elastic.State, elastic.ObjectState, load("horovod.torch.elastic").TorchState):
        assert differences(kind, facts.STATE_METHODS) == {}
        assert {name for name in dir(kind) if not name.startswith("_")} == set(facts.STATE_METHODS)
    assert parameters(elastic.State) == ["bcast_object", "get_rank"]
    assert parameters(elastic.ObjectState) == ["bcast_object", "get_rank"]
    assert parameters(load("horovod.torch.elastic").TorchState)[:2] == ["model=None", "optimizer=None"]
    assert differences(elastic.WorkerNotificationManager, facts.NOTIFICATION_METHODS) == {}
    changes = elastic.HostUpdateResult
    assert (changes.no_update, changes.removed, changes.added, changes.mixed) == (0, 1, 2, 3)


def test_outside_of_a_job_the_errors_are_horovods():
    import torch

    hvd = load("horovod.torch")
    calls = {
        "rank before init": hvd.rank,
        "operation before init": lambda: hvd.allreduce(torch.ones(1)),
        "timeline before init": lambda: hvd.start_timeline("timeline.json"),
    }
    assert not hvd.is_initialized()
    for condition, call in calls.items():
        expect_error(hvd, facts.OUTSIDE[condition], call)


# On ranks.


def expect_error(hvd, expected, call):
    name, fragment = expected
    with raises(getattr(hvd, name, None) or getattr(builtins, name), fragment):
        call()


@ranks(2, 3)
def test_what_ranks_disagree_about_is_named_as_by_horovod():
    import torch

    hvd = load("horovod.torch")
    last = hvd.rank() == hvd.size() - 1
    rows = torch.ones(6, 3 if last else 2)
    columns = torch.ones(3 if last else 2, 6)
    kind = torch.float64 if last else torch.float32
    one = torch.ones(2)
    calls = {
        "dtype": lambda name: hvd.allreduce(torch.ones(2, dtype=kind), name=name),
        "shape of allreduce": lambda name: hvd.allreduce(columns, name=name),
        "shape of broadcast": lambda name: hvd.broadcast(columns, 0, name=name),
        "shape of reducescatter": lambda name: hvd.reducescatter(columns, name=name),
        "columns of allgather": lambda name: hvd.allgather(rows, name=name),
        "columns of alltoall": lambda name: hvd.alltoall(rows, name=name),
        "scale": lambda name: hvd.allreduce(one, name=name, prescale_factor=2.0 + last),
        "reduction": lambda name: hvd.allreduce(one, name=name, op=hvd.Max if last else hvd.Sum),
        "root": lambda name: hvd.broadcast(one, hvd.size() - 1 if last else 0, name=name),
    }
    assert set(calls) == set(facts.DISAGREEMENTS)
    for condition, call in calls.items():
        expected = facts.DISAGREEMENTS[condition]
        expect_error(hvd, expected, lambda: call("disagree." + condition))  # noqa: B023
        # Everybody goes on, under the same name too.
        again = hvd.allreduce(torch.ones(1), name="disagree." + condition, op=hvd.Sum)
        assert again.item() == hvd.size()


@ranks(2)
def test_what_one_rank_does_wrong_is_its_own_error():
    import torch

    hvd = load("horovod.torch")
    if hvd.rank() == 0:
        for condition, call in wrong_calls(hvd, torch).items():
            expected = facts.WRONG_CALLS[condition]
            try:
                expect_error(hvd, expected, call)
            except BaseException as error:
                raise AssertionError(f"{condition}: {type(error).__name__}: {error}") from error
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


def wrong_calls(hvd, torch):
    size, one = hvd.size(), torch.ones(4)
    scalar = torch.tensor(1.0)
    model = torch.nn.Linear(2, 2)
    named = list(model.named_parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def wrap(**options):
        return hvd.DistributedOptimizer(sgd, **options)

    calls = {
        "scalar to allgather": lambda: hvd.allgather_async(scalar),
        "scalar to alltoall": lambda: hvd.alltoall(scalar),
        "scalar to reducescatter": lambda: hvd.reducescatter(scalar),
        "root not in set": lambda: hvd.broadcast(one, size),
        "uneven alltoall": lambda: hvd.alltoall(torch.ones(size + 1)),
        "splits too large": lambda: hvd.alltoall(one, splits=[4] * size),
        "splits too many": lambda: hvd.alltoall(one, splits=[0] * (size + 1)),
        "splits not int32": lambda: hvd.alltoall(one, splits=torch.ones(size)),
        "splits not 1-D": lambda: hvd.alltoall(
            one, splits=torch.zeros(1, size, dtype=torch.int32)
        ),
        "reducescatter op": lambda: hvd.reducescatter(one, op=hvd.Max),
        "dtype unsupported": lambda: hvd.allreduce(torch.zeros(2, dtype=torch.complex32)),
        "not contiguous in place": lambda: hvd.allreduce_(torch.ones(3, 2).t()),
        "op and average": lambda: hvd.allreduce(one, average=True, op=hvd.Sum),
        "poll of an unknown handle": lambda: hvd.poll(123456),
        "broadcast_parameters of a generator": lambda: hvd.broadcast_parameters(
            model.parameters(), 0
        ),
        "LBFGS state": lambda: hvd.broadcast_optimizer_state(
            torch.optim.LBFGS(model.parameters()), 0
        ),
        "predivide without average": lambda: wrap(op=hvd.Sum, gradient_predivide_factor=2.0),
        "no passes": lambda: wrap(backward_passes_per_step=0),
        "names twice": lambda: wrap(named_parameters=[("a", p) for _, p in named]),
        "names missing": lambda: wrap(named_parameters=named[:1]),
        "names without parameters": lambda: wrap(named_parameters=[name for name, _ in named]),
        "groups of the wrong type": lambda: wrap(groups="two"),
        "unknown set": lambda: hvd.allreduce(one, process_set=hvd.ProcessSet([0])),
    }
    assert set(calls) == set(facts.WRONG_CALLS)
    return calls


@ranks(2)
def test_the_optimizer_keeps_horovods_promises():
    """Methods, and the errors and the one warning of its states; every rank does the same."""
    import warnings

    import torch

    hvd = load("horovod.torch")
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert differences(optimizer, facts.OPTIMIZER_METHODS) == {}
    assert optimizer._parameter_names[model.weight] == "weight"

    def backward():
        model(torch.ones(1, 2)).sum().backward()

    backward()
    expect_error(hvd, facts.OPTIMIZER_ERRORS["zero_grad too early"], optimizer.zero_grad)
    optimizer.synchronize()
    with optimizer.skip_synchronize(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    optimizer.zero_grad()
    backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
    text = "optimizer.step() called without optimizer.skip_synchronize()"
    assert [str(w.message).startswith(text) for w in seen] == [True]
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        backward()
    expect_error(hvd, facts.OPTIMIZER_ERRORS["backward too often"], backward)
    with raises(RuntimeError, "changed while they were being reduced"):  # rueda's own
        optimizer.step()


@ranks(2)
def test_after_shutdown_operations_say_so_and_init_works_again():
    import torch

    hvd = load("horovod.torch")
    hvd.shutdown()
    hvd.shutdown()
    expected = facts.OUTSIDE["operation after shutdown"]
    expect_error(hvd, expected, lambda: hvd.allreduce(torch.ones(1)))
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2


@ranks(2)
def test_process_sets_have_horovods_errors():
    import torch

    hvd = load("horovod.torch")
    hvd.shutdown()
    only_0 = hvd.ProcessSet([0])
    hvd.init(process_sets=[only_0])
    if hvd.rank() == 1:
        assert not only_0.included()
        calls = {
            "not a member": lambda: hvd.allreduce(torch.ones(1), process_set=only_0),
            "rank of another set": only_0.rank,
        }
        for condition, call in calls.items():
            expect_error(hvd, facts.SETS[condition], call)
    assert hvd.join() in (0, 1)
    hvd.shutdown()
    hvd.init()
