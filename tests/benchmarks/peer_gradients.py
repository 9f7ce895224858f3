"""The gradients of a model through a framework's data parallelism: peer_gradients.py FRAMEWORK MILLISECONDS...

One row per imitated length of backward (0: as fast as gradients can be written), and one of a real small network. A row's
figure is the exposed time: a step with communication minus the same step, in the same process, without."""

import sys

import torch

import frameworks
from meeting import Meeting, figures, print_row, samples_of, state_of
from models import Chain, network, resnet_shapes

WARM_UPS, STEPS = 8, 9


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
