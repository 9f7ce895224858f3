"""Whether code is being compiled by torch.compile, for PyTorch versions that can take collectives.

``graph`` is `rueda.torch._graph`, or None under an older PyTorch: there `is_compiling` is never
true, and a graph ends before a collective, which then runs as without a compiler.
"""

import torch


def _supported():
    """Without the last of these nothing would keep collectives in their order."""
    return (
        hasattr(torch, "compiler")
        and hasattr(torch.compiler, "is_dynamo_compiling")
        and hasattr(torch.library, "register_autograd")
        and hasattr(torch.library, "_register_effectful_op")
    )


if _supported():
    # Dynamo replaces the call by True; for everybody else it is a function that returns False.
    from torch.compiler import is_dynamo_compiling as is_compiling

    from rueda.torch import _graph as graph
else:
    graph = None

    def is_compiling():
        return False
