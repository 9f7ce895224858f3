"""Models whose gradients the benchmarks communicate."""

import time

import torch


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


def small_network():
    """0.4 M parameters."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                               torch.nn.Linear(512, 10))


def blocks(count, width):
    """A list of equal blocks, each a unit of sharding: 8 of width 1250 have 25 M parameters."""
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
                                 for _ in range(count)))
