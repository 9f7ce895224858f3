"""Strict readers of timeline files: Horovod's dialect, and our tracks. ValueError says what is wrong."""

import collections
import json

STAGES = "backward submitted negotiated queued packed unpacked marks".split() + [
    "on the wire",
    "optimizer step",
]

Round = collections.namedtuple("Round", "op negotiated ready ran activities dtype shape")
Round.__doc__ = """One operation on one tensor: times (begin, end) in microseconds, the ranks in the
order in which they were ready, and its activities as (name, begin, end)."""

_PREFIXES = ("MPI", "NCCL", "CCL", "GLOO")
_WIRE = {f"{prefix}_{op}" for prefix in _PREFIXES for op in ("ALLREDUCE", "ALLGATHER", "BCAST")}
_WIRE |= {f"{p}_ALLTOALL" for p in _PREFIXES} | {f"{p}_REDUCESCATTER" for p in _PREFIXES}
_MEMORY = {"QUEUE", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"}
OPS = {"ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER", "BARRIER"}


def _need(good, why, event):
    if not good:
        raise ValueError(f"{why}: {event}")


def load(path):
    """The events of a file, which must be a JSON array of objects that say what and when."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    _need(isinstance(events, list), "no array", events)
    for event in events:
        _need(isinstance(event, dict) and isinstance(event.get("pid"), int), "no event", event)
        _need(event.get("ph") in set("MBEXisfC"), "unknown kind", event)
        if event["ph"] != "M":
            ts = event.get("ts")
            _need(isinstance(ts, (int, float)) and ts >= 0, "no time", event)
        if event["ph"] != "E":
            _need(isinstance(event.get("name"), str), "no name", event)
    return events


def horovod(path):
    """Horovod's dialect: {tensor: [Round]}, {mark: [(begin, end)]}, times of cycle marks."""
    events = load(path)
    first = events[0]
    _need(first["ph"] == "M" and first["name"] == "process_name", "no beginning", first)
    _need(first["args"]["start_time_since_epoch_in_micros"] > 1.5e15, "no start time", first)
    names, stacks, last = {}, collections.defaultdict(list), collections.defaultdict(int)
    rounds, marks, cycles = collections.defaultdict(list), collections.defaultdict(list), []
    negotiated, ready = {}, {}
    for event in events[1:]:
        kind, pid = event["ph"], event["pid"]
        if kind == "M":
            if event["name"] == "process_name":
                _need(pid not in names and pid == len(names) + 1, "process out of turn", event)
                names[pid] = event["args"]["name"]
            else:
                _need(event["name"] == "process_sort_index", "unknown metadata", event)
                _need(isinstance(event["args"]["sort_index"], int), "no index", event)
            continue
        _need(isinstance(event["ts"], int), "microseconds are whole", event)
        if kind == "i":
            _need(event["name"] == "CYCLE_START" and event["s"] == "g", "unknown instant", event)
            cycles.append(event["ts"])
            continue
        _need(pid in names, "an event of a process without a name", event)
        _need(event["ts"] >= last[pid], "time runs backwards", event)
        last[pid] = event["ts"]
        stack = stacks[pid]
        if kind == "X":
            _need(event["name"].isdigit() and event["dur"] == 0, "no rank that is ready", event)
            _need(len(stack) == 1 and stack[0][0].startswith("NEGOTIATE_"), "not negotiated", event)
            ready[pid].append(int(event["name"]))
        elif kind == "B":
            name = event["name"]
            if name == names[pid]:
                pass  # a mark
            elif not stack:
                _need(name in OPS or name.removeprefix("NEGOTIATE_") in OPS, "unknown", event)
                if name in OPS:
                    _need(negotiated.get(pid, ("",))[0] == name, "not negotiated before", event)
                else:
                    ready[pid] = []
            else:
                _need(len(stack) == 1 and stack[0][0] in OPS, "nested too deeply", event)
                _need(name in _WIRE | _MEMORY, "unknown activity", event)
            stack.append((name, event["ts"], []))
        else:
            _need(stack, "an end without a beginning", event)
            name, begin, activities = stack.pop()
            span = (begin, event["ts"])
            if name == names[pid]:
                marks[name].append(span)
            elif stack:
                stack[0][2].append((name, *span))
            elif name in OPS:
                args = event["args"]
                _, told = negotiated.pop(pid)
                rounds[names[pid]].append(
                    Round(name, told, ready[pid], span, activities, args["dtype"], args["shape"])
                )
            else:
                negotiated[pid] = (name.removeprefix("NEGOTIATE_"), span)
    _need(not any(stacks.values()) and not negotiated, "phases that never end", stacks)
    return dict(rounds), dict(marks), cycles


def tracks(path):
    """Channels: {rank: {stage: [event]}}, with the metadata of each rank under "about"."""
    found, rows, arrows = {}, {}, collections.defaultdict(list)
    busy = collections.defaultdict(float)
    slices = collections.defaultdict(list)
    for event in load(path):
        rank, kind = event["pid"], event["ph"]
        if kind == "M":
            if event["name"] == "process_name":
                _need(rank not in found, "a rank twice", event)
                found[rank] = {stage: [] for stage in STAGES}
                found[rank]["about"] = event["args"]
            elif event["name"] == "thread_name":
                rows[rank, event["tid"]] = event["args"]["name"]
            continue
        if kind == "C":
            _need(event["name"] == "bytes" and event["args"]["bytes"] >= 0, "unknown counter", event)
            continue
        row = (rank, event.get("tid"))
        if kind in "sf":
            arrows[event["id"]].append((event["ts"], kind, row))
            continue
        if kind == "i" and event["name"] == "CYCLE_START":
            continue
        _need(row in rows and rows[row].startswith(event["cat"]), "a row without a name", event)
        found[rank][event["cat"]].append(event)
        if kind == "X":
            _need(event["dur"] >= 0, "ends before it begins", event)
            slices[row].append((event["ts"], event["ts"] + event["dur"]))
    for row, of_row in slices.items():
        of_row.sort()
        for begin, end in of_row:
            _need(begin >= busy[row] - 0.002, "slices of one row overlap", (row, begin, end))
            busy[row] = end
    for number, ends in arrows.items():
        ends.sort()
        _need([kind for _, kind, _ in ends] == ["s", "f"], f"arrow {number} is broken", ends)
        for ts, _, row in ends:
            held = any(begin <= ts <= end for begin, end in slices[row])
            _need(held, f"arrow {number} hangs in the air", (ts, row))
    return found
