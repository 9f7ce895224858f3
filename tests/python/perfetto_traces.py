"""A strict reader of Perfetto traces as timelines write them, with the protos of PyPI's perfetto. ValueError says
what is wrong."""

import collections
import gzip
import struct

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

COUNTED = 64  # the clock that events count with

Slice = collections.namedtuple("Slice", "track name begin end args")
Slice.__doc__ = """Of a track of a rank, times in nanoseconds."""


class Rank:
    """What one rank's process shows."""

    def __init__(self, name, labels):
        self.name = name
        self.about = {key: int(value) for key, value in (label.split("=") for label in labels)}
        self.slices = []
        self.instants = []  # (track, name, time); of the whole rank: track None
        self.counters = []  # (name, time, value)
        self.starts, self.ends = {}, {}  # arrows: {number: index of its slice}


def _need(good, why, what):
    if not good:
        raise ValueError(f"{why}: {what}")


def load(path):
    with (gzip.open if str(path).endswith(".gz") else open)(path, "rb") as file:
        return file.read()


def packets(data):
    """The complete packets at the beginning of ``data``, as (end, bytes)."""
    at = 0
    while at < len(data):
        _need(data[at] == 0x0A, "no packet begins here", at)
        length = shift = 0
        at += 1
        while at < len(data):
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            return  # cut within the length
        if at + length > len(data):
            return
        yield at + length, data[at : at + length]
        at += length


class _Sequence:
    def __init__(self):
        self.names, self.details, self.last, self.clock = {}, {}, None, None


def read(data, is_cut=False):
    """{rank: Rank}. ``is_cut``: slices may have no end, and arrows none either."""
    found, sequences, tracks, open_slices = {}, {}, {}, collections.defaultdict(list)
    for number, (_, raw) in enumerate(packets(data)):
        packet = TracePacket.FromString(raw)
        _need(len(UnknownFieldSet(packet)) == 0, "unknown fields", number)
        sequence_id = packet.trusted_packet_sequence_id
        _need(sequence_id > 0, "no sequence", number)
        if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            sequences[sequence_id] = _Sequence()
            sequences[sequence_id].clock = packet.trace_packet_defaults.timestamp_clock_id
        _need(sequence_id in sequences, "a sequence without a beginning", number)
        sequence = sequences[sequence_id]
        for name in packet.interned_data.event_names:
            sequence.names[name.iid] = name.name
        for name in packet.interned_data.debug_annotation_names:
            sequence.details[name.iid] = name.name
        if packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
            _need(set(clocks) == {6, COUNTED} and clocks[COUNTED].is_incremental, "unknown clocks", clocks)
            _need(clocks[6].timestamp == clocks[COUNTED].timestamp == 0, "clocks that differ", clocks)
            sequence.last = 0
        elif packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            if described.HasField("process"):
                rank = described.process.pid - 1
                _need(rank == sequence_id - 1, "another's process", described)
                found[rank] = Rank(described.process.process_name, described.process.process_labels)
                tracks[described.uuid] = (found[rank], None, None)
            else:
                _need(described.parent_uuid in tracks, "a track without a process", described)
                counted = described.counter.unit if described.HasField("counter") else None
                tracks[described.uuid] = (tracks[described.parent_uuid][0], described.name, counted)
        elif packet.HasField("track_event"):
            _need(packet.HasField("timestamp") and sequence.last is not None, "no time", number)
            _need(sequence.clock == COUNTED and not packet.timestamp_clock_id, "another clock", number)
            sequence.last += packet.timestamp
            _take(packet.track_event, sequence, tracks, open_slices)
    for uuid, waiting in open_slices.items():
        _need(is_cut or not waiting, "slices that never end", (uuid, waiting))
    for rank in found.values():
        _need(is_cut or set(rank.starts) == set(rank.ends), "arrows that lead nowhere", rank.name)
    return found


def _take(event, sequence, tracks, open_slices):
    _need(event.track_uuid in tracks, "an event of no track", event)
    rank, track, unit = tracks[event.track_uuid]
    time = sequence.last
    if event.type == TrackEvent.TYPE_COUNTER:
        _need(unit == 3, "no counter of bytes", event)
        rank.counters.append((track, time, event.counter_value))
    elif event.type == TrackEvent.TYPE_SLICE_END:
        waiting = open_slices[event.track_uuid]
        if not waiting:
            return  # its beginning was cut off
        name, begin, args, starts, ends = waiting.pop()
        rank.starts.update((number, len(rank.slices)) for number in starts)
        rank.ends.update((number, len(rank.slices)) for number in ends)
        rank.slices.append(Slice(track, name, begin, time, args))
    else:
        _need(event.name_iid in sequence.names, "an event without a name", event)
        name = sequence.names[event.name_iid]
        if event.type == TrackEvent.TYPE_INSTANT:
            rank.instants.append((track, name, time))
            return
        _need(event.type == TrackEvent.TYPE_SLICE_BEGIN and track, "an unknown event", event)
        _need(not open_slices[event.track_uuid], "slices of one row overlap", event)
        args = {}
        for detail in event.debug_annotations:
            key = sequence.details[detail.name_iid]
            args[key] = detail.string_value if detail.HasField("string_value") else detail.uint_value
        open_slices[event.track_uuid].append((name, time, args, list(event.flow_ids), list(event.terminating_flow_ids)))


def length_of_member(data, at):
    """Of the gzip member that begins there, as its extra field says."""
    return struct.unpack_from("<Q", data, at + 16)[0]
