"""The gradients of a model through a framework's data parallelism: peer_gradients.py FRAMEWORK MILLISECONDS...

One row per imitated length of backward (0: as fast as gradients can be written), and one of a real small network. A row's
figure is the exposed time: a step with communication minus the same step, in the same process, without."""

import sys
import time

import torch

import frameworks
from meeting import Meeting, figures, print_row, samples_of, state_of

WARM_UPS, STEPS = 8, 9


def resnet_shapes(blocks_of_stages=(3, 4, 6, 3)):
    """He et al. (2015), bottleneck blocks: 161 tensors, 25,557,032 parameters for ResNet-50."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    inputs, width = 64, 64
    for blocks in blocks_of_stages:
        for block in range(blocks):
            outputs = 4 * width
            shapes += [(width, inputs, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(outputs, width, 1, 1), (outputs,), (outputs,)]
            if block == 0:
                shapes += [(outputs, inputs, 1, 1), (outputs,), (outputs,)]
            inputs = outputs
        width *= 2
    return shapes + [(1000, 2048), (1000,)]


class Link(torch.autograd.Function):
    """One layer of a chain: backward computes for a given time and then makes the parameter's gradient."""

    @staticmethod
    def forward(context, x, parameter, seconds, value):
        context.parameter, context.seconds, context.value = parameter, seconds, value
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        end = time.perf_counter() + context.seconds
        while context.seconds and time.perf_counter() < end:
            pass
        made = torch.empty_like(context.parameter).fill_(context.value)
        return gradient, made, None, None


class Chain(torch.nn.Module):
    """Parameters of the given shapes whose gradients come last one first, spread over `backward` seconds by size."""

    def __init__(self, shapes, backward, value):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])
        total = sum(part.numel() for part in self.parts)
        self.delays = [backward * part.numel() / total for part in self.parts]
        self.value = value

    def forward(self, x):
        for part, delay in zip(self.parts, self.delays):
            x = Link.apply(x, part, delay, self.value)
        return x


def network():
    torch.manual_seed(1)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(768, 768), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def step_of(framework, model, x):
    """A function that does one training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    parameters = list(model.parameters())
    model, optimizer = framework.wrap(model, optimizer)

    def step():
        for part in parameters:  # by hand: Horovod's zero_grad takes no set_to_none
            part.grad = None
        model(x).sum().backward()
        optimizer.step()

    return step


def measure(framework, meeting, make_model, x, check):
    step = step_of(framework, make_model(), x)
    alone = step_of(frameworks.Alone(), make_model(), x)
    model = make_model()
    checked = step_of(framework, model, x)
    before = meeting.one_way_ns()
    # In turns, so that a change of the machine's state between them shows in neither alone.
    with_it, without = [], []
    for warm_ups in (WARM_UPS, 1, 1):
        without += samples_of(meeting, alone, lambda: None, warm_ups, STEPS // 3, seconds=60)
        with_it += samples_of(meeting, step, lambda: None, warm_ups, STEPS // 3, seconds=60)
    ns = [before, meeting.one_way_ns()]
    checked()
    wrong = meeting.worst(sum(check(part) for part in model.parameters()))
    row = figures(sorted(with_it))
    compute = figures(sorted(without))["us"]
    row.update(step_us=row["us"], compute_us=compute, us=round(max(row["us"] - compute, 0.1), 3))
    return {**row, "wrong": int(wrong), "ns": ns, "state": state_of(ns)}


def main():
    framework = frameworks.start(sys.argv[1])
    meeting = Meeting(framework.rank, framework.size)
    meeting.pin_to_core()
    print_row(meeting, about=framework.about)
    shapes = resnet_shapes()
    mean = sum(range(1, meeting.size + 1)) / meeting.size
    one = torch.ones(1, requires_grad=True)
    for text in sys.argv[2:]:
        row = {"op": "gradients", "dtype": "f32", "memory": "private", "manner": "hooks"}
        if text == "network":
            size = sum(part.numel() for part in network().parameters()) * 4
            result = measure(framework, meeting, network, torch.randn(32, 768),
                             lambda part: int(not torch.isfinite(part.grad).all()))
            print_row(meeting, case="gradients:network", bytes=size, **row, **result)
            continue
        result = measure(framework, meeting,
                         lambda: Chain(shapes, float(text) / 1e3, meeting.rank + 1.0), one,
                         lambda part: int((part.grad != mean).sum()))
        size = sum(torch.Size(shape).numel() for shape in shapes) * 4
        print_row(meeting, case="gradients:resnet50:%sms" % text, bytes=size, **row, **result)
    meeting.barrier()
    framework.leave()


main()
