"""Whether code is being compiled by torch.compile, for PyTorch versions that can take collectives.

``graph`` is `rueda.torch._graph`, or None under an older PyTorch: there `is_compiling` is never true
and compiled code is interrupted at a collective, which then runs as without a compiler.
"""

import torch


def _supported():
    """PyTorch 2.4 has all of these."""
    try:
        from torch._higher_order_ops import effects
    except ImportError:
        return False
    return (
        hasattr(effects, "_register_effectful_op")
        and hasattr(torch.library, "register_autograd")
        and hasattr(torch.compiler, "is_dynamo_compiling")
    )


if _supported():
    # Dynamo replaces the call by True; for everybody else it is a function that returns False.
    from torch.compiler import is_dynamo_compiling as is_compiling

    from rueda.torch import _graph as graph
else:
    graph = None

    def is_compiling():
        return False
