"""What int8, top-k and PowerSGD have in common: compressions that carry out the whole reduction.

A Horovod compressor changes what a tensor travels as, and the ranks' tensors are still added
element by element. These change how the sum is formed, so they run the collectives themselves, and
they remember between steps what they left out (error feedback): it is added to the next tensor of
the same name.

An instance is the memory of one optimizer (or of a set of named allreduces). The class itself where
an instance could be given means an instance of its own: for one optimizer, or for one allreduce,
which then has no memory.
"""

import weakref
import zlib

import torch

from rueda.common import basics
from rueda.common.exceptions import HorovodInternalError
from rueda.common.process_sets import global_process_set
from rueda.torch import _async
from rueda.torch._compress_chain import Chain

# Tensors of fewer elements travel as they are: less is to be saved than a collective costs.
SMALLEST = 1024


class Reducer:
    """Base of compressions with their own reduction. All arithmetic is in float32."""

    kind = ""  # what it is called in messages and states
    shared: tuple = ()  # what must be the same in all ranks' memories

    def __init__(self):
        self._memory = {}  # name -> {what: tensor}
        self._under_way = weakref.WeakValueDictionary()
        self._owned = False

    # What a subclass says.

    def settings(self):
        """The arguments it was made with, as a dict."""
        return {}

    def compresses(self, shape):
        """Whether it pays for a floating-point tensor of this shape, of SMALLEST elements or more."""
        raise NotImplementedError

    def average(self, tensor, name, memory, process_set):
        """Generator (see `Chain`): returns the mean of all ranks' float32 tensors.

        ``memory`` is a dict that is kept for the next tensor of this name; empty at first. What is
        put under "error", of the tensor's shape, has been added to the next tensor already.
        """
        raise NotImplementedError

    # What its users call.

    def start(
        self,
        tensor,
        name,
        op=basics.Average,
        prescale=1.0,
        postscale=1.0,
        process_set=global_process_set,
        then=lambda result: result,
    ):
        """Starts the reduction of a dense tensor; returns a `Chain` whose result is then(reduced).

        The tensor must stay as it is until the chain has ended. ValueError for an op other than
        Average and Sum, without a name, and for a name whose memory is of another shape.
        """
        self.check_op(op)
        if not isinstance(name, str):
            raise ValueError(
                f"compression {self.kind} needs the name of the tensor: under it, what was left "
                "out is kept for the next step"
            )
        if name in self._under_way:
            raise ValueError(
                f"'{name}' has the same name as another tensor that is being reduced: wait for that"
            )
        steps = self._reduction(tensor.detach(), name, op, prescale, postscale, process_set, then)
        return Chain(steps, self._under_way, name)

    def check_op(self, op):
        """ValueError for a reduction that cannot be formed from compressed tensors."""
        if op not in (basics.Average, basics.Sum):
            raise ValueError(f"compression {self.kind} is for op=Average and op=Sum, got op={op!r}")

    def _reduction(self, tensor, name, op, prescale, postscale, process_set, then):
        size = process_set.size()
        worth = tensor.is_floating_point() and tensor.numel() >= SMALLEST
        if size == 1 or not worth or not self.compresses(tensor.shape):
            arguments = None, name, op, prescale, postscale, process_set
            return then((yield _async.allreduce_async(tensor, *arguments)))
        memory = self._memory.setdefault(name, {})
        for what, value in memory.items():  # a state that was loaded may lie elsewhere
            if what != "place" and value.device != tensor.device:
                memory[what] = value.to(tensor.device)
        error = memory.get("error")
        if error is not None and error.shape != tensor.shape:
            raise ValueError(
                f"compression {self.kind}: '{name}' has shape {list(tensor.shape)}, its memory "
                f"{list(error.shape)}; a name belongs to one tensor, an instance to one optimizer"
            )
        # Under the tensor's own name, which a rank that does not compress would use too.
        facts = self._facts(tensor, memory)
        arguments = None, name, basics.Max, 1.0, 1.0, process_set
        most = yield _async.allreduce_async(facts, *arguments)
        self._check_agreement(most.tolist(), tensor, name, memory)
        values = tensor.float() if error is None else tensor.float() + error
        mean = yield from self.average(values, name, memory, process_set)
        factor = prescale * postscale * (size if op == basics.Sum else 1)
        return then((mean if factor == 1.0 else mean * factor).to(tensor.dtype))

    def _facts(self, tensor, memory):
        """Numbers whose maximum over ranks tells whether all have the same."""
        form = (self.kind, self.settings(), str(tensor.dtype), tuple(tensor.shape))
        shared = [memory[what].cpu().numpy().tobytes() for what in self.shared if what in memory]
        facts = [zlib.crc32(repr(form).encode()), zlib.crc32(b"".join(shared)), tensor.numel()]
        return torch.tensor(facts + [-fact for fact in facts])

    def _check_agreement(self, most, tensor, name, memory):
        same_form, same_memory, same_count = (most[i] == -most[i + 3] for i in range(3))
        if not same_form or not same_count:
            raise HorovodInternalError(
                f"Mismatched ALLREDUCE tensor shapes or compressions: allreduce '{name}': this "
                f"rank sent {tensor.dtype}{list(tensor.shape)} under {self.kind} "
                f"{self.settings() or ''}, all ranks {-most[5]} to {most[2]} elements; make all "
                "ranks submit the same"
            )
        if not same_memory:  # some have joined or have loaded a state: all begin anew
            for what in self.shared:
                memory.pop(what, None)

    def tensors_kept(self):
        """The memory itself: for `memory_report`."""
        return self._memory

    def state_dict(self):
        """This rank's memory, for `load_state_dict`; every rank has its own."""
        memory = {
            name: {what: value.clone() for what, value in of.items()}
            for name, of in self._memory.items()
        }
        return {"kind": self.kind, "settings": self.settings(), "memory": memory}

    def load_state_dict(self, state):
        """Goes on from what `state_dict` gave on this rank. ValueError for another compression."""
        found, own = (state["kind"], state["settings"]), (self.kind, self.settings())
        if found != own:
            raise ValueError(f"this is the state of compression {found}, not of {own}")
        self._memory = {
            name: {what: value.clone() for what, value in of.items()}
            for name, of in state["memory"].items()
        }

    def compress(self, tensor):
        """Refused: there is no form of one tensor that could be added to those of other ranks."""
        raise ValueError(
            f"compression {self.kind} reduces by itself: it is for allreduce, grouped_allreduce "
            "and DistributedOptimizer"
        )


def reducer_for_call(compression):
    """The instance for one call of allreduce, or None for a Horovod-style compression."""
    if isinstance(compression, type) and issubclass(compression, Reducer):
        return compression()
    return compression if isinstance(compression, Reducer) else None


def reducer_for_optimizer(compression, op, groups):
    """An optimizer's own instance, or the Horovod-style compression as it is."""
    if isinstance(compression, type) and issubclass(compression, Reducer):
        compression = compression()
    if not isinstance(compression, Reducer):
        return compression
    compression.check_op(op)
    if groups:
        raise ValueError(
            f"compression {compression.kind} reduces each gradient by itself: leave groups out"
        )
    if compression._owned:
        raise ValueError(
            f"this {type(compression).__name__} belongs to another optimizer: what it remembers is "
            "of that one's gradients; make a new one"
        )
    compression._owned = True
    return compression


def without_error(values, sent):
    """What was left out, for next time; nothing where it is not finite, so that one overflow is
    not felt for ever."""
    return torch.nan_to_num_(values - sent, 0.0, 0.0, 0.0)
