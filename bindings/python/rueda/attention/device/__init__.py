"""Attention of tensors that lie on a GPU: plans of the library, computed by PyTorch's kernels and others.

A call runs the same plan as on CPUs: tiles of rows that a rank has, and of rows that come in exchange after exchange. What
differs is who does it: Python puts kernels into the current stream and copies into a stream of their own, and returns; nothing
waits on the host. `_pieces` cuts tiles into what libraries compute, `_libraries` makes libraries alike, `_kernels` chooses one,
`_partial` merges what they give, `_executor` runs a rank's plan over a `_transport`, `_ring` is what users call.

All of it works on CPU tensors too, which is how it is tested.
"""

from rueda.attention.device._kernels import kernel_for, use_kernel
from rueda.attention.device._ring import VirtualRing, attend, options_of, takes

__all__ = ["VirtualRing", "attend", "kernel_for", "options_of", "takes", "use_kernel"]
