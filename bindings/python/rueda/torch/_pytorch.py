"""Is there a PyTorch that rueda can use; an ImportError that says what to do where there is none.

Imported before all else of `rueda.torch`, whose modules would fail at some name that is missing.
"""

import re

OLDEST = (1, 13)

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "rueda.torch needs PyTorch, which this Python has not: pip install torch", name="torch"
    ) from None

_found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
if _found and tuple(map(int, _found.groups())) < OLDEST:
    raise ImportError(
        f"rueda.torch needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, this one is "
        f"{torch.__version__}: pip install --upgrade torch"
    )
