"""The parameters of an optimizer: their names, and which are reduced as one."""

import collections
import warnings

import torch

from rueda.common.util import split_list
from rueda.torch._epochs import is_elastic
from rueda.torch.functions import broadcast_object, require_materialized


def name_parameters(optimizer, named_parameters):
    """parameter -> name, complete and unique, or ValueError."""
    groups = [group["params"] for group in optimizer.param_groups]
    names = {
        p: f"allreduce.noname.{i}.{j}" for i, group in enumerate(groups) for j, p in enumerate(group)
    }
    if named_parameters is not None:
        names = _given(named_parameters, groups)
    for group in groups:
        for p in group:
            require_materialized(names[p], p)
    return names


def _given(named_parameters, groups):
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    counts = collections.Counter(name for name, _ in pairs)
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(map(str, duplicates))
        )
    by_parameter = {p: name for name, p in pairs}
    unnamed = sum(1 for group in groups for p in group if p not in by_parameter)
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named "
            f"({unnamed} of the optimizer's parameters)."
        )
    return by_parameter


def make_groups(groups, num_groups, names, optimizer):
    """Lists of parameters that are reduced as one; parameters in none are reduced alone."""
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return []
    if isinstance(groups, list):
        flat = [p for members in groups for p in members]
        if not all(isinstance(p, torch.Tensor) for p in flat):
            raise ValueError("groups must be a list of lists of parameters")
        if len(flat) != len(set(flat)):
            raise ValueError("groups must name each parameter at most once")
        if not all(p in names for p in flat):
            raise ValueError("groups must consist of the optimizer's parameters")
        chosen = groups
    elif isinstance(groups, int) and groups > 0:
        # Rank 0's order counts, so that all ranks cut the same groups; names', where a rank may have no peers yet.
        own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        order = [names[p] for p in own]
        order = sorted(order) if is_elastic() else broadcast_object(order, 0, "optimizer_groups")
        by_name = {names[p]: p for p in own}
        chosen = split_list([by_name[name] for name in order], groups)
    else:
        raise ValueError("groups should be a list of lists of parameters, or a number > 0")
    trained = [[p for p in members if p.requires_grad] for members in chosen]
    return [members for members in trained if members]
