"""Averages of what ranks have measured on their own data."""

import zlib

import torch

from rueda.common.process_sets import global_process_set
from rueda.torch._tensors import blocking


def average_metrics(metrics, weight=1.0, process_set=global_process_set):
    """The averages of all ranks' metrics, the same on every rank. One small collective.

    Parameters
    ----------
    metrics : dict of str to float or one-element tensor
        The same names on all ranks, in any order.
    weight : float
        How much this rank's values count, say its number of examples. 0 leaves them out, whatever
        they are. The weights must not all be 0.

    Returns
    -------
    dict of str to float, in the order of ``metrics``. Sums are formed in float64 in rank order.

    ValueError on all ranks when their names differ.
    """
    names = sorted(metrics)
    weight = float(weight)
    if not weight >= 0.0:
        raise ValueError(f"average_metrics: weight={weight} must not be negative")
    values = [float(metrics[name]) for name in names]
    form = zlib.crc32("\n".join(names).encode())
    mine = torch.tensor([len(names), form, weight, *values], dtype=torch.float64)
    everyone = blocking.allgather(mine, "average_metrics", process_set)
    rows, numbers = [], everyone.tolist()
    while numbers:
        end = 3 + int(numbers[0])
        rows.append(numbers[:end])
        numbers = numbers[end:]
    different = [rank for rank, row in zip(process_set.ranks, rows) if row[:2] != rows[0][:2]]
    if different:
        raise ValueError(
            f"average_metrics: rank {different[0]} has other names than rank "
            f"{process_set.ranks[0]}; here they are {names}"
        )
    total = sum(row[2] for row in rows)
    if total == 0.0:
        raise ValueError("average_metrics: the weights of all ranks are 0")
    counted = [row for row in rows if row[2] > 0.0]
    means = {
        name: sum(row[2] * row[3 + i] for row in counted) / total for i, name in enumerate(names)
    }
    return {name: means[name] for name in metrics}
