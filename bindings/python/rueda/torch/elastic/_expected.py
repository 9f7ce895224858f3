"""The tensors that an optimizer's state will have: those of a twin that steps on tensors without memory."""

import copy

import torch

from rueda.torch import _large_pages
from rueda.torch._outline import Outline


def expected_tensors(optimizer):
    """Tensors like those of its state dict after a first step, in their order, of zeros that have been written.

    None of them where that cannot be known: parameters on several devices, or an optimizer that is not PyTorch's own or does
    not step so.
    """
    devices = {p.device for group in optimizer.param_groups for p in group["params"]}
    twin = copy.copy(optimizer)
    if len(devices) != 1 or not type(twin).__module__.startswith("torch.optim."):
        return []
    twin.param_groups = [{**group, "params": list(map(_shadow, group["params"]))} for group in optimizer.param_groups]
    twin.state = type(optimizer.state)(optimizer.state.default_factory)
    outline = Outline(twin)
    try:
        twin.step()
        outline.read()
    except Exception:  # whatever its step needs more than gradients
        return []
    (device,) = devices
    return [_written(tensor, device if tensor.is_meta else tensor.device) for tensor in outline.tensors]


def _shadow(parameter):
    shadow = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    if parameter.requires_grad:
        shadow.grad = torch.empty_like(shadow, requires_grad=False)
    return shadow


def _written(tensor, device):
    return _large_pages.empty_like(torch.empty_like(tensor, device=device)).zero_()
