"""Collectives under torch.compile: one graph, the same bits, nothing moved or removed.

The backend is aot_eager, which traces and functionalizes all but generates no code; inductor, which
does, compiles C++ and is slow, so one test has it.
"""

import pathlib
import re
import subprocess
import sys

import pytest
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch import _compiler
from worlds import ranks, results, run_ranks

WORLD = "compile"

if _compiler.graph is None:
    pytest.skip("this PyTorch cannot keep collectives in their order", allow_module_level=True)

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "compile.md"


def compiled(function, backend="aot_eager", fullgraph=True, **options):
    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=fullgraph, **options)


def graph_breaks():
    """Reasons and how often; number of graphs. Both since the last call."""
    from torch._dynamo.utils import counters

    breaks, graphs = dict(counters["graph_break"]), counters["stats"]["unique_graphs"]
    counters.clear()
    return breaks, graphs


def assert_same(actual, expected, tolerance=0.0):
    assert list(actual) == list(expected)
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype, f"{key}: {actual[key].dtype}, not {value.dtype}"
        assert actual[key].shape == value.shape, f"{key}: {actual[key].shape}, not {value.shape}"
        equal = torch.equal(actual[key], value)
        if tolerance and value.is_floating_point():
            equal = torch.allclose(actual[key], value, rtol=tolerance, atol=tolerance)
        assert equal, f"{key}: {actual[key]}, not {value}"


def every_collective(x, w):
    """Each synchronous collective, on values that depend on x and w; own row counts by rank."""
    y = x * w
    out = {}
    out["allreduce"] = hvd.allreduce(y, name="compiled", op=hvd.Sum, prescale_factor=0.3)
    out["average"] = hvd.allreduce(y.sin(), compression=hvd.Compression.bf16) / hvd.size()
    out["most"] = hvd.allreduce(y, op=hvd.Max, prescale_factor=0.3, postscale_factor=0.7)
    out["products 0"], out["products 1"] = hvd.grouped_allreduce([y, w], op=hvd.Product)
    out["combined"] = hvd.allreduce(y.cos(), op=hvd.Adasum)
    out["integers"] = hvd.allreduce((x * 4).to(torch.int64), op=hvd.Max)
    out["group 0"], out["group 1"] = hvd.grouped_allreduce([y, y[0]], name="compiled.group")
    out["allgather"] = hvd.allgather(y[: hvd.rank() + 1]) * 2
    out["gathered 0"], out["gathered 1"] = hvd.grouped_allgather([y, y[hvd.rank() :] + 1])
    out["broadcast"] = hvd.broadcast(y, 1)
    out["alltoall"] = hvd.alltoall(y[:2])
    out["splits"], out["received"] = hvd.alltoall(y, [1, 1])
    out["reducescatter"] = hvd.reducescatter(y, op=hvd.Sum)
    out["scattered 0"], out["scattered 1"] = hvd.grouped_reducescatter([y, y[:1]])
    hvd.barrier()
    return out


def forward_and_backward(function):
    x = (torch.arange(12.0).reshape(3, 4) / 7 + hvd.rank()).requires_grad_()
    w = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    out = function(x, w)
    sum((value**2).sum() for value in out.values() if value.requires_grad).backward()
    out = {key: value.detach() for key, value in out.items()}
    return {**out, "x.grad": x.grad, "w.grad": w.grad}


@ranks(2)
def test_every_collective_and_its_gradient_is_one_graph_and_has_the_same_bits():
    expected = forward_and_backward(every_collective)
    graph_breaks()
    function = compiled(every_collective)
    for _ in range(3):
        assert_same(forward_and_backward(function), expected)
    found = graph_breaks()
    assert found == ({}, 1), found


@ranks(3)
def test_collectives_of_process_sets_are_in_the_graph_too():
    pair, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = alone if hvd.rank() == 1 else pair

    def function(x, w):
        y, out = x * w, {}
        out["allreduce"] = hvd.allreduce(y, name="of a set", op=hvd.Sum, process_set=mine)
        out["most"] = hvd.allreduce(y, op=hvd.Max, process_set=mine)
        out["group 0"], out["group 1"] = hvd.grouped_allreduce([y, w], process_set=mine)
        out["allgather"] = hvd.allgather(y[: hvd.rank() + 1], process_set=mine)
        out["gathered 0"], out["gathered 1"] = hvd.grouped_allgather([y, w], process_set=mine)
        out["broadcast"] = hvd.broadcast(y, mine.ranks[-1], process_set=mine)
        out["alltoall"], out["received"] = hvd.alltoall(y, [3 // mine.size()] * mine.size(), process_set=mine)
        out["reducescatter"] = hvd.reducescatter(y, process_set=mine)
        out["scattered 0"], out["scattered 1"] = hvd.grouped_reducescatter([y, w], process_set=mine)
        hvd.barrier(process_set=mine)
        return out

    expected = forward_and_backward(function)
    graph_breaks()
    fast = compiled(function)
    for _ in range(3):
        assert_same(forward_and_backward(fast), expected)
    found = graph_breaks()
    assert found == ({}, 1), found
    hvd.remove_process_set(pair)
    with raises(ValueError, "does not exist"):
        torch.ops.rueda.barrier(pair.process_set_id or 1)


@ranks(2)
def test_in_place_forms_write_to_the_tensors_they_were_given():
    def function(x):
        y = x.clone()
        assert hvd.allreduce_(y, op=hvd.Sum) is y
        hvd.broadcast_(x, 1)
        hvd.grouped_allreduce_([x[0], y], name="compiled.in_place")
        return y

    def run(function):
        x = torch.arange(4.0).reshape(2, 2) + hvd.rank()
        return {"y": function(x), "x": x}

    assert_same(run(compiled(function)), run(function))


@ranks(2)
def test_parameters_are_changed_in_place_as_without_a_compiler():
    def function(x):
        hvd.allreduce_(layer.weight, op=hvd.Sum)
        return layer(x)

    layer = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(layer.weight, hvd.rank() + 1)
    compiled(function)(torch.ones(2))
    assert torch.equal(layer.weight, torch.full((1, 2), 3.0))


@ranks(2)
def test_nothing_is_removed_where_only_some_ranks_use_the_result():
    def function(x):
        total = hvd.allreduce(x, op=hvd.Sum, name="used by rank 0")
        gathered = hvd.allgather(x, name="used by rank 1")
        hvd.allreduce_(x * 2, name="used by nobody")
        return total + 1 if hvd.rank() == 0 else gathered * 2

    before = hvd.counter("batches")
    result = compiled(function)(torch.ones(2))
    assert hvd.counter("batches") - before == 3
    assert torch.equal(result, torch.full((2,), 3.0) if hvd.rank() == 0 else torch.full((4,), 2.0))


@ranks(2)
def test_operations_run_in_the_order_of_the_program():
    orders = []

    def backend(graph, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(module, _):
            arguments = [node.args for node in module.graph.nodes if "effects" in str(node.target)]
            orders.append([name for args in arguments for name in args if isinstance(name, str)])
            tokens = [node.args[0] for node in module.graph.nodes if "effects" in str(node.target)]
            assert len(set(tokens)) == len(tokens), "two operations hang on the same token"
            return make_boxed_func(module.forward)

        return aot_autograd(fw_compiler=keep)(graph, inputs)

    def function(x):
        last = x + 1
        results = [hvd.allreduce(x * i, name=f"order.{i}") for i in range(4)]
        return sum(results), hvd.allgather(last, name="order.4")

    torch.compiler.reset()
    leaf = torch.ones(2, requires_grad=True)
    total, gathered = torch.compile(function, backend=backend, fullgraph=True)(leaf)
    (total.sum() + gathered.sum()).backward()
    assert orders[0] == [f"order.{i}" for i in range(5)], orders
    assert sorted(orders[1]) == [f"order.{i}.backward" for i in range(4)] + ["order.4"], orders


@ranks(2)
def test_compiled_and_uncompiled_ranks_work_together():
    def function(x):
        return hvd.allreduce(hvd.allgather(x[: hvd.rank() + 1]) * 2).sum() * hvd.broadcast(x, 0)

    def run(function):
        x = (torch.arange(6.0).reshape(2, 3) + hvd.rank()).requires_grad_()
        result = function(x)
        result.sum().backward()
        return {"result": result.detach(), "gradient": x.grad}

    expected = run(function)
    fast = compiled(function)
    for who in (0, 1):
        assert_same(run(fast if hvd.rank() == who else function), expected)


@ranks(2)
def test_sizes_that_change_by_rank_and_by_step():
    def function(x):
        return hvd.allgather(x * 2), hvd.reducescatter(x[:3]), x.sum()

    fast = compiled(function, dynamic=True)
    graph_breaks()
    for step in range(6):
        x = torch.ones(4 + step * (1 + hvd.rank()), 2)
        for actual, expected in zip(fast(x), function(x)):
            assert torch.equal(actual, expected)
    assert graph_breaks()[1] <= 2


@ranks(2)
def test_ranks_that_disagree_get_the_error_and_the_graph_works_on():
    fast = compiled(lambda x: hvd.allreduce(x, name="disagreed", op=hvd.Sum), dynamic=False)
    for _ in range(2):
        assert torch.equal(fast(torch.ones(4)), torch.full((4,), 2.0))
        with raises(hvd.HorovodInternalError, "disagreed", "Mismatched ALLREDUCE tensor shapes"):
            fast(torch.ones(5 + hvd.rank()))


@ranks(2)
def test_wrong_calls_raise_what_they_raise_without_a_compiler():
    with raises(ValueError, "does not exist"):
        compiled(
            lambda x: hvd.allreduce(x, process_set=hvd.ProcessSet([0])), fullgraph=False
        )(torch.ones(2))
    with raises(ValueError, "it needs a first dimension"):
        compiled(hvd.allgather)(torch.tensor(1.0))
    with raises(ValueError, "does not support scalar inputs"):
        compiled(hvd.reducescatter)(torch.tensor(1.0))
    with raises(ValueError, "2 ranks"):
        compiled(lambda x: hvd.alltoall(x, [1, 1, 1]))(torch.ones(3))
    with raises(RuntimeError, "compiled for other ranks", "torch.compiler.reset()"):
        torch.ops.rueda.reducescatter(torch.ones(4), 4, None, 0, hvd.Sum, 1.0, 1.0)


@ranks(2)
def test_asynchronous_operations_interrupt_the_graph_and_are_not_compiled():
    def function(x):
        handle = hvd.allreduce_async(x * 2, name="interrupting", op=hvd.Sum)
        other = x + 1
        return hvd.synchronize(handle) + other

    fast = compiled(function, fullgraph=False)
    graph_breaks()
    for step in range(12):
        x = torch.full((2,), float(step))
        assert torch.equal(fast(x), x * 5 + 1)
    breaks, graphs = graph_breaks()
    assert len(breaks) == 2 and graphs <= 4, f"{graphs} graphs, {breaks}"


@ranks(2)
def test_what_int8_compresses_is_left_out_of_graphs():
    def function(x):
        reduced = hvd.allreduce(x.sin(), name="smaller", compression=hvd.Compression.int8)
        return {"reduced": reduced * 2}

    x = torch.linspace(-1, 1, 3000) * (1 + hvd.rank())
    expected = function(x)
    fast = compiled(function, fullgraph=False)
    graph_breaks()
    for _ in range(3):
        assert_same(fast(x), expected)
    breaks, graphs = graph_breaks()
    assert len(breaks) == 1 and graphs == 2, f"{graphs} graphs, {breaks}"


@ranks(2)
def test_operations_pass_the_checks_of_pytorch():
    x = torch.arange(6.0).reshape(3, 2) + hvd.rank()
    splits = torch.tensor([1, 2], dtype=torch.int32)
    leaf, leaves = x.clone().requires_grad_(), [x.clone().requires_grad_() for _ in range(2)]
    own = 2 - hvd.rank()
    for name, arguments in {
        "allreduce": (leaf, None, 0, hvd.Sum, 1.0, 1.0),
        "grouped_allreduce": (leaves, None, 0, hvd.Sum, 1.0, 1.0),
        "allgather": (leaf, None, 0),
        "grouped_allgather": (leaves, None, 0),
        "broadcast": (leaf, 1, None, 0),
        "alltoall": (leaf, splits, hvd.size(), None, 0),
        "reducescatter": (leaf, own, None, 0, hvd.Sum, 1.0, 1.0),
        "grouped_reducescatter": (leaves, [own, own], None, 0, hvd.Sum, 1.0, 1.0),
        "barrier": (0,),
    }.items():
        operation = getattr(torch.ops.rueda, name).default
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(operation, arguments, test_utils=tests)


# Training steps.


def train(how, steps=4, distributed=True):
    """Losses and parameters of a small training whose model or step ``how`` may compile."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def make_step(model):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    step = how(model, make_step)
    x = torch.arange(24.0).reshape(4, 6) / 24 + hvd.rank()
    losses = [step(x + i).detach() for i in range(steps)]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return {"losses": torch.stack(losses), **parameters}


def as_written(model, make_step):
    return make_step(model)


def model_compiled(model, make_step):
    return make_step(compiled(model))


def step_compiled(model, make_step):
    return compiled(make_step(model), fullgraph=False)


def backward_compiled(model, make_step):
    step = make_step(compiled(model))

    def with_compiled_autograd(x):
        compiler = torch.compile(backend="aot_eager")
        with torch._dynamo.compiled_autograd._enable(compiler):
            return step(x)

    return with_compiled_autograd


def report(how, breaks, graphs):
    if hvd.rank() == 0:
        print(f"{how.__name__}: {graphs} graphs, {sum(breaks.values())} graph breaks")
        for reason, times in breaks.items():
            print(f"  {times} x {reason.splitlines()[0][:100]}")


@ranks(2)
def test_a_training_step_compiles_as_far_as_pytorch_compiles_it_and_has_the_same_bits():
    expected = train(as_written)
    graph_breaks()
    assert_same(train(model_compiled), expected)
    breaks, graphs = graph_breaks()
    report(model_compiled, breaks, graphs)
    assert (breaks, graphs) == ({}, 1)
    assert_same(train(step_compiled), expected)
    breaks, graphs = graph_breaks()
    report(step_compiled, breaks, graphs)
    ours = sum(times for reason, times in breaks.items() if "_Distributed.step" in reason)
    train(step_compiled, distributed=False)
    breaks_without_us, graphs_without_us = graph_breaks()
    assert graphs == graphs_without_us, f"{graphs} graphs, not {graphs_without_us}"
    assert ours == 1 and sum(breaks.values()) <= sum(breaks_without_us.values()) + 1, breaks


@ranks(2)
def test_the_example_of_the_documentation():
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL):
        torch.compiler.reset()
        exec(compile(code, str(DOCS), "exec"), {"__name__": "example"})


# What takes long has a world of its own.


def inductor():
    def function(x, w):
        y = torch.tanh(x * w)
        out = {"allreduce": hvd.allreduce(y, name="inductor"), "in place": y * 2}
        hvd.allreduce_(out["in place"])
        out["allgather"] = hvd.allgather(y[: hvd.rank() + 1]).exp()
        out["splits"], out["received"] = hvd.alltoall(y, [1, 1])
        out["reducescatter"] = hvd.grouped_reducescatter([y])[0]
        hvd.allreduce(y, name="not used")
        hvd.barrier()
        return out

    expected = forward_and_backward(function)
    assert_same(forward_and_backward(compiled(function, backend="inductor")), expected, 1e-6)


@pytest.mark.slow
def test_inductor_agrees_within_rounding():
    results(run_ranks(2, inductor))


def compiled_autograd():
    expected = train(as_written)
    graph_breaks()
    assert_same(train(backward_compiled), expected)
    breaks, graphs = graph_breaks()
    report(backward_compiled, breaks, graphs)
    assert breaks and all("Gradient.complete" in reason for reason in breaks), breaks


@pytest.mark.slow
def test_compiled_autograd_stops_for_the_hook_of_each_gradient_and_has_the_same_bits():
    results(run_ranks(2, compiled_autograd))


# Without ranks.


def test_nothing_imports_the_compiler_and_an_older_pytorch_ends_graphs_at_collectives():
    program = """if True:
        import sys, torch
        missing = torch.library._register_effectful_op
        del torch.library._register_effectful_op
        import rueda.torch as hvd
        print("torch._dynamo" in sys.modules)
        torch.library._register_effectful_op = missing
        hvd.init()
        x = torch.ones(2, requires_grad=True)
        fast = torch.compile(lambda x: hvd.allreduce(x * 2, name="a") + 1, backend="aot_eager")
        for _ in range(3):
            fast(x).sum().backward()
        from torch._dynamo.utils import counters
        print(x.grad.tolist(), sum(counters["graph_break"].values()))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["False", "[6.0, 6.0] 1", ""]
