"""Rows from rank to rank: between virtual ranks of this process, or between the ranks of a process set.

A `link` is one rank's side. ``exchange(kind, key, send, receive, dtype)`` is called by every rank for the same kinds and keys in
the same order; ``send`` is (peer, parts), each part a list of views, one after another along the rows; ``receive`` is
(peer, shapes of the parts). Of the handle that it gives, ``ready()`` says whether the sender has come that far on the host,
``wait()`` lets the current stream wait and gives the parts, ``release()`` says that the current stream has no
further use for them.
"""

import torch


class Streams:
    """Of a GPU: the caller's stream, and one for copies."""

    def __init__(self, device):
        self.copies = torch.cuda.Stream(device)
        self.device = device

    def mark(self):
        """A point in the caller's stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, event):
        torch.cuda.current_stream(self.device).wait_event(event)

    def copy(self, after, moves):
        """Copies (from, to) when the points ``after`` are reached; gives the point behind them."""
        with torch.cuda.stream(self.copies):
            for event in after:
                self.copies.wait_event(event)
            for source, target in moves:
                source.record_stream(self.copies)  # it may be given up before it has been read
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self.copies)
        return event

    def join(self):
        """The caller's stream waits for all copies, so that memory may be given back behind it."""
        torch.cuda.current_stream(self.device).wait_stream(self.copies)


class NoStreams:
    """Of a CPU: everything is done when it is said."""

    def mark(self):
        return None

    def wait(self, event):
        pass

    def copy(self, after, moves):
        for source, target in moves:
            target.copy_(source)

    def join(self):
        pass


def _moves(parts, slots):
    for runs, slot in zip(parts, slots):
        at = 0
        for view in runs:
            yield view, slot[:, at : at + view.shape[1]]
            at += view.shape[1]


class VirtualWorld:
    """Ranks of one process and device. What travels is copied on a stream of its own, into slots of the receiver."""

    def __init__(self, ranks, device, streams=None):
        self.device = torch.device(device)
        if streams is None:
            streams = Streams(device) if self.device.type == "cuda" else NoStreams()
        self.ranks, self.streams = ranks, streams
        self.sent = {}  # (from, to, kind, key): (parts, point)
        self.bytes = [0] * ranks  # that each has sent

    def link(self, rank, slots=2):
        return _VirtualLink(self, rank, slots)

    def run(self, calls):
        """Runs generators, one for each rank, in turns; gives what they return."""
        results, waiting = [None] * len(calls), dict(enumerate(calls))
        while waiting:
            for rank, call in list(waiting.items()):
                try:
                    next(call)
                except StopIteration as end:
                    results[rank] = end.value
                    del waiting[rank]
        self.streams.join()
        assert not self.sent, f"sent but never received: {list(self.sent)}"
        return results


class _VirtualLink:
    def __init__(self, world, rank, slots):
        self.world, self.rank, self.slots = world, rank, slots
        self.free = {}  # (kind, slot): the point behind which it may be written
        self.memory = {}
        self.outgrown = []  # until the world's end: copies may be under way

    def exchange(self, kind, key, send, receive, dtype):
        if send is not None:
            peer, parts = send
            self.world.sent[(self.rank, peer, kind, key)] = parts, self.world.streams.mark()
        return _VirtualHandle(self, kind, key, receive, dtype)

    def slot(self, kind, key, shapes, dtype):
        """Memory of the slot, in parts: what was made for the largest message so far."""
        where = (kind, key % self.slots)
        sizes = [torch.Size(shape).numel() for shape in shapes]
        memory = self.memory.get(where)
        if memory is None or memory.numel() < sum(sizes) or memory.dtype != dtype:
            memory = torch.empty(sum(sizes), dtype=dtype, device=self.world.device)
            # Made behind what the current stream has been given before: copies come after that.
            self.free[where] = self.world.streams.mark()
            self.outgrown.append(self.memory.get(where))
            self.memory[where] = memory
        parts = memory[: sum(sizes)].split(sizes)
        return [part.view(shape) for part, shape in zip(parts, shapes)]


class _VirtualHandle:
    def __init__(self, link, kind, key, receive, dtype):
        self.link, self.kind, self.key, self.receive, self.dtype = link, kind, key, receive, dtype
        self.parts, self.done = [], None
        self.copied = receive is None

    def ready(self):
        """Copies as soon as the sender has come that far."""
        world = self.link.world
        if self.copied:
            return True
        peer, shapes = self.receive
        found = world.sent.pop((peer, self.link.rank, self.kind, self.key), None)
        if found is None:
            return False
        parts, point = found
        self.parts = self.link.slot(self.kind, self.key, shapes, self.dtype)
        free = self.link.free.get((self.kind, self.key % self.link.slots))
        after = [event for event in (point, free) if event is not None]
        self.done = world.streams.copy(after, list(_moves(parts, self.parts)))
        world.bytes[peer] += sum(x.numel() * x.element_size() for x in self.parts)
        self.copied = True
        return True

    def wait(self):
        if self.receive is not None:
            self.link.world.streams.wait(self.done)
        return self.parts

    def release(self):
        if self.receive is not None:
            self.link.free[(self.kind, self.key % self.link.slots)] = self.link.world.streams.mark()


class SetLink:
    """A rank of a process set: an exchange is an alltoall in which each rank has at most one peer each way."""

    def __init__(self, process_set, device, width):
        self.process_set, self.device, self.width = process_set, device, width

    def exchange(self, kind, key, send, receive, dtype):
        from rueda import torch as hvd

        splits = [0] * self.process_set.size()
        rows = torch.empty((0, self.width), dtype=dtype, device=self.device)
        if send is not None:
            peer, parts = send
            parts = [torch.cat(runs, 1).reshape(-1, self.width).to(dtype) for runs in parts]
            rows = torch.cat(parts)
            splits[peer] = rows.shape[0]
        name = f"attention.{kind}.{self.process_set.process_set_id}.{key}"
        handle = hvd.alltoall_async(rows, splits, name=name, process_set=self.process_set)
        return _SetHandle(handle, receive)

    def run(self, call):
        """Runs one rank's generator to its end."""
        while True:
            try:
                next(call)
            except StopIteration as end:
                return end.value


class _SetHandle:
    def __init__(self, handle, receive):
        self.handle, self.receive = handle, receive

    def ready(self):
        return True

    def wait(self):
        from rueda import torch as hvd

        received = hvd.synchronize(self.handle)[0].reshape(-1)
        if self.receive is None:
            return []
        sizes = [torch.Size(shape).numel() for shape in self.receive[1]]
        return [x.view(shape) for x, shape in zip(received.split(sizes), self.receive[1])]

    def release(self):
        pass
