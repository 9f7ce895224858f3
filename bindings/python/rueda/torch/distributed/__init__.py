"""``torch.distributed`` on rueda: `init_process_group("rueda")`.

>>> import torch, torch.distributed as dist
>>> dist.init_process_group("rueda")
>>> dist.all_reduce(torch.ones(3))

An installed rueda needs no import; importing this module makes the name known too. docs/torch_distributed.md
says what serves each operation and what differs from Gloo.

Errors are ``torch.distributed.DistBackendError`` (`CollectiveError`, `LostRankError`, `CollectiveTimeout`);
`LostRankError` has the attributes of `rueda.RankLostError`.
"""

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    raise ImportError(
        f"torch.distributed on rueda needs PyTorch 2.6 or newer, this is {torch.__version__}; hvd functions work with it"
    )

from rueda.torch.distributed._convert import process_group, process_set
from rueda.torch.distributed._errors import CollectiveError, CollectiveTimeout, LostRankError
from rueda.torch.distributed._start import from_store
from rueda_torch_backend import register

__all__ = [
    "CollectiveError",
    "CollectiveTimeout",
    "LostRankError",
    "from_store",
    "process_group",
    "process_set",
    "register",
]

register()
