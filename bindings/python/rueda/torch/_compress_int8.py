"""8 bits per element: blocks of 256 whole numbers with one float32 scale.

Two roundings per step, whatever the number of ranks, and each is fed back:

    every rank    its gradient + what it left out -> blocks -> each block to its owner   (alltoall)
    block owner   sum of all ranks' blocks + what it left out -> blocks -> to all        (allgather)

Bytes: 2 (P-1)/P * 260/256 per element, of 2 (P-1)/P * 4 without compression: 3.9 times fewer.
Source: two-shot quantised allreduce as in ZeRO++ (Wang et al. 2023); error feedback on both sides
as in DoubleSqueeze (Tang et al., ICML 2019).
"""

import torch

from rueda._runtime import runtime
from rueda.torch import _async
from rueda.torch._compress_reducer import Reducer, without_error
from rueda.torch._tensors import Tensors

BLOCK = 256  # elements
_SCALE = 4  # bytes of a block's scale, which follows its elements


class Int8Compressor(Reducer):
    """Gradients travel as 8-bit numbers, with error feedback. See `rueda.torch._compress_int8`."""

    kind = "int8"

    def compresses(self, shape):
        return True

    def average(self, tensor, name, memory, process_set):
        size, rank = process_set.size(), process_set.rank()
        count = tensor.numel()
        padded = torch.nn.functional.pad(tensor.reshape(-1), (0, -count % BLOCK))
        blocks = padded.view(-1, BLOCK)
        wire = to_int8(blocks)
        memory["error"] = without_error(tensor, from_int8(wire).view(-1)[:count].view(tensor.shape))
        shares = [len(part) for part in torch.arange(len(blocks)).tensor_split(size)]
        received, _ = yield _async.alltoall_async(wire, shares, name + ".blocks", process_set)

        of_ranks = from_int8(received).view(size, shares[rank], BLOCK)
        total = of_ranks[0]
        for other in of_ranks[1:]:
            total = total + other
        # Another number of ranks, or another place among them, means another share.
        left_out = memory.get("error of the sum")
        place = torch.tensor([size, rank])
        if left_out is not None and torch.equal(memory["place"], place):
            total = total + left_out
        wire = to_int8(total)
        memory["error of the sum"], memory["place"] = without_error(total, from_int8(wire)), place
        gathered = yield _async.allgather_async(wire, name + ".sums", process_set)
        return (from_int8(gathered).view(-1)[:count] / size).view(tensor.shape)


def to_int8(blocks):
    """float32 [n, BLOCK] -> int8 [n, BLOCK + 4], rounded to nearest even.

    A block with an element that is not finite comes back as NaN. On a GPU one kernel of rueda's, where
    there is one; else operations of PyTorch, which may divide by 127 otherwise there.
    """
    made = _by_kernel("quantize", blocks, BLOCK + _SCALE, torch.int8)
    if made is not None:
        return made
    scale = blocks.abs().amax(dim=1, keepdim=True) / 127
    finite = torch.isfinite(scale)
    levels = torch.round(blocks / torch.where(finite & (scale > 0), scale, scale.new_ones(())))
    wire = torch.empty(len(blocks), BLOCK + _SCALE, dtype=torch.int8, device=blocks.device)
    wire[:, :BLOCK] = torch.where(finite, levels, levels.new_zeros(())).clamp_(-127, 127)
    scales = wire.view(torch.float32)[:, BLOCK // _SCALE :]
    scales.copy_(torch.where(finite, scale, scale.new_full((), float("nan"))))
    return wire


def from_int8(wire):
    """The float32 [n, BLOCK] that an int8 [n, BLOCK + 4] stands for."""
    made = _by_kernel("dequantize", wire, BLOCK, torch.float32)
    if made is not None:
        return made
    scale = wire[:, BLOCK:].contiguous().view(torch.float32)
    return wire[:, :BLOCK].float() * scale


def _by_kernel(what, source, columns, dtype):
    """In a GPU's current stream; None: the tensor lies elsewhere, or there are no kernels."""
    device, stream = Tensors.place(source)
    if device < 0:
        return None
    source = source.contiguous()
    target = torch.empty(len(source), columns, dtype=dtype, device=source.device)
    places = source.data_ptr(), target.data_ptr(), len(source)
    return target if runtime.int8(what, *places, device, stream) else None
