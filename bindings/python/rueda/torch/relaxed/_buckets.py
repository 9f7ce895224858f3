"""The buckets of a communication hook: gradients side by side in flat memory, as DDP has them.

A bucket goes to the hook when all its gradients have come and those before it have gone, so that hooks whose
collectives are matched by their order start them in the same order on all ranks.
"""

import itertools

import torch

from rueda.torch.sharding._batch import room, view_of

FIRST_BYTES = 1 << 20  # of the first bucket, which shall go early; DDP's


class GradBucket:
    """What a hook is given; the methods of ``torch.distributed.GradBucket``."""

    def __init__(self, parameters, offsets, index, is_last, flat):
        self._parameters, self._offsets = parameters, offsets
        self._index, self._is_last = index, is_last
        self._flat = flat

    def index(self):
        """Its place among the buckets of a step, from 0; the same on all ranks."""
        return self._index

    def is_last(self):
        """Whether it is the last one that a step gives to the hook."""
        return self._is_last

    def buffer(self):
        """All gradients of the bucket, one behind the other; one-dimensional."""
        return self._flat

    def set_buffer(self, buffer):
        """Puts another tensor of as many elements in its place; ValueError for one that has others."""
        self._flat = self.fitting(buffer, "set_buffer()")

    def gradients(self):
        """Views of the buffer in the parameters' shapes."""
        return self.parts_of(self._flat)

    def parameters(self):
        """Those whose gradients they are."""
        return list(self._parameters)

    def fitting(self, tensor, what):
        """A tensor as one row. ValueError if that is not as long as the bucket."""
        count = self._flat.numel()
        if not isinstance(tensor, torch.Tensor) or tensor.numel() != count:
            found = f"{tensor.numel()} elements" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ValueError(f"{what}: the bucket has {count} elements, this is {found}")
        return tensor.detach().reshape(-1)

    def parts_of(self, flat):
        return [view_of(flat, offset, p) for p, offset in zip(self._parameters, self._offsets)]


class Bucket:
    """Gradients that go to the hook together, step after step; stands where a `Group` would."""

    def __init__(self, line, gradients):
        self._line, self.gradients = line, gradients
        counts = [gradient.parameter.numel() for gradient in gradients]
        *self._offsets, self._count = itertools.accumulate(counts, initial=0)
        self._ready = 0  # how many of them are
        self._flat = None
        for gradient in gradients:
            gradient.group, gradient.in_place = self, None

    def complete(self, gradient):
        self._ready += not gradient.is_ready
        gradient.is_ready = gradient.step.is_partial = True
        if self.is_complete():
            self._line.go_on()

    def is_complete(self):
        return self._ready == len(self.gradients)

    def has_gone(self):
        return self.gradients[0].reduction is not None

    def forget(self, gradient):
        gradient.is_ready = False
        self._ready -= 1

    def filled(self, index, is_last, dense_of):
        """The `GradBucket` with what ``dense_of(gradient)`` gives for each."""
        parameters = [gradient.parameter for gradient in self.gradients]
        if self._flat is None:
            self._flat = _memory(self._count, parameters[0])
        made = GradBucket(parameters, self._offsets, index, is_last, self._flat)
        with torch.no_grad():
            for view, gradient in zip(made.gradients(), self.gradients):
                view.copy_(dense_of(gradient))
        return made

    def renew(self):
        """Other memory from the next step on: what has failed may write to this one yet."""
        self._flat = None


class Line:
    """The buckets of one optimizer, in the order in which they go.

    Parameters
    ----------
    most_bytes : int
        Of a bucket, up to its last gradient.
    launch : callable
        Called with a complete bucket, its place and whether it is the last.
    """

    def __init__(self, most_bytes, launch):
        self._most_bytes, self._launch = most_bytes, launch
        self._buckets = []

    def append(self, gradients):
        """Puts gradients, in the order of their parameters, into buckets behind those that there are."""
        self._buckets += [Bucket(self, members) for members in self._cut(gradients)]

    def _cut(self, gradients):
        """From the last parameter on, as backward reaches them; of one type and device each."""
        filling, full = {}, []
        limit = self._most_bytes if self._buckets else min(FIRST_BYTES, self._most_bytes)
        for gradient in reversed(gradients):
            p = gradient.parameter
            kind = p.dtype, p.device
            members, nbytes = filling.pop(kind, ([], 0))
            members.append(gradient)
            nbytes += p.numel() * p.element_size()
            if nbytes >= limit:
                full.append(members)
                limit = self._most_bytes
            else:
                filling[kind] = members, nbytes
        return full + [members for members, _ in filling.values()]

    def go_on(self):
        """Lets go whichever buckets are complete and have their turn."""
        for index, bucket in enumerate(self._buckets):
            if not bucket.has_gone():
                if not bucket.is_complete():
                    return
                self._launch(bucket, index, index == len(self._buckets) - 1)


def _memory(count, like):
    if like.is_cpu:
        return room(count, like.dtype, zeroed=False)
    return torch.empty(count, dtype=like.dtype, device=like.device)
