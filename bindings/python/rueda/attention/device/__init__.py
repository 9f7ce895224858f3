"""Attention of tensors that lie on a GPU: plans of the library, computed by PyTorch's kernels and others.

A call runs the same plan as on CPUs, by the same executor (attention/executor.h): it keeps order, memory and messages, and calls back
for the work of each instruction, which is given to the current stream; nothing waits on the host. What is here are these leaves:
`_program` is the library's program as they see it, `_leaves` the work of its instructions, `_kernels` chooses a kernel for a piece,
`_libraries` makes libraries alike, `_own` and `_blocks` compute what they refuse, `_partial` merges, `_wire` compresses, `_run` calls the
executor, `_ring` is what users call.

All of it works on CPU tensors too, which is how it is tested.
"""

from rueda.attention.device._kernels import kernel_for, use_kernel
from rueda.attention.device._ring import VirtualRing, attend, backward, forward, options_of, takes

__all__ = ["VirtualRing", "attend", "backward", "forward", "kernel_for", "options_of", "takes", "use_kernel"]
