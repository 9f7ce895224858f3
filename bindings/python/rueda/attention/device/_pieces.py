"""From the tiles of a plan to pieces that kernels compute. Integers only.

Libraries compute full rectangles and causal squares, in which query i sees the keys up to i. Whatever a band, a stride or an
offset makes of a tile is cut into these, which removes the question where a library lays its diagonal when there are more
keys than queries; what remains goes to a kernel that takes any band.
"""

import collections

from rueda.attention._plans import OWN_TILE, RECEIVED, SENT, TILE

FULL, CAUSAL, BAND = "full", "causal", "band"
_BLOCK = 512  # queries of a block where a window is cut
_WORTH = 64  # keys that all queries of a block see: fewer stay with those that only some see

Rows = collections.namedtuple("Rows", "begin step count")
Rows.__doc__ = "Rows begin, begin + step, ...: ``count`` of them."

Piece = collections.namedtuple("Piece", "kind heads q k place")
Piece.__doc__ = """One kernel call. ``heads``: KV heads (begin, end, step), numbers of the whole model. ``q``, ``k``: `Rows`.
``place`` of a band: (q_pos, q_step, k_pos, k_step, low, high); query i sees key j where
low <= (k_pos + j * k_step) - (q_pos + i * q_step) <= high."""

Set = collections.namedtuple("Set", "head_begin head_end runs")
Set.__doc__ = "Rows that travel for the KV heads [head_begin, head_end): a list of `Rows`."

Schedule = collections.namedtuple("Schedule", "exchanges own sends receives")
Schedule.__doc__ = """A plan for an executor: the number of exchanges; pieces of own rows; of an exchange (peer, [Set])
what is sent, and (peer, [Set], pieces) what is received. Pieces of received rows count keys in the message's sets."""


def _part(rows, begin, end):
    return Rows(rows.begin + begin * rows.step, rows.step, end - begin)


def _cut(tile, low, high):
    """The pieces of one tile (`Work`)."""
    heads = (tile.head_begin, tile.head_end, tile.head_step)
    q, k = Rows(tile.q, tile.q_step, tile.q_count), Rows(tile.k, tile.k_step, tile.k_count)
    if q.count == 0 or k.count == 0:
        return

    def seen(i):
        at = tile.q_pos + i * tile.q_pos_step - tile.k_pos
        begin = -((-at - low) // tile.k_pos_step)
        end = (at + high) // tile.k_pos_step + 1
        return max(0, begin), min(k.count, end)

    def piece(kind, q_begin, q_end, k_begin, k_end):
        place = None
        if kind == BAND:
            place = (
                tile.q_pos + q_begin * tile.q_pos_step, tile.q_pos_step,
                tile.k_pos + k_begin * tile.k_pos_step, tile.k_pos_step, low, high,
            )  # fmt: skip
        return Piece(kind, heads, _part(q, q_begin, q_end), _part(k, k_begin, k_end), place)

    first, last = seen(0), seen(q.count - 1)
    if last[0] == 0 and first[1] == k.count:
        yield piece(FULL, 0, q.count, 0, k.count)
        return
    if last[0] == 0 and tile.q_pos_step == tile.k_pos_step:  # query i sees keys up to i + offset
        offset = (tile.q_pos - tile.k_pos + high) // tile.k_pos_step
        begin, end = max(0, -offset), min(q.count, k.count - offset)
        if end > begin:
            if offset + begin > 0:
                yield piece(FULL, begin, end, 0, offset + begin)
            yield piece(CAUSAL, begin, end, offset + begin, offset + end)
        if q.count > max(begin, end):
            yield piece(FULL, max(begin, end), q.count, 0, k.count)
        return
    for begin in range(0, q.count, _BLOCK):
        end = min(q.count, begin + _BLOCK)
        (left, right), (last_left, last_right) = seen(begin), seen(end - 1)
        if left >= last_right:
            continue
        if right - last_left < _WORTH:
            yield piece(BAND, begin, end, left, last_right)
            continue
        if left < last_left:
            yield piece(BAND, begin, end, left, last_left)
        yield piece(FULL, begin, end, last_left, right)
        if right < last_right:
            yield piece(BAND, begin, end, right, last_right)


def _follows(a, b):
    return a.step == b.step and b.begin == a.begin + a.count * a.step


def _together(a, b):
    return Rows(a.begin, a.step, a.count + b.count)


def _join_full(pieces, along, other):
    """Rectangles that touch become one: ``along`` "q" or "k", the other side alike."""
    joined = []
    for piece in sorted(pieces, key=lambda p: (p.heads, getattr(p, other), getattr(p, along))):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.heads == piece.heads
            and getattr(last, other) == getattr(piece, other)
            and _follows(getattr(last, along), getattr(piece, along))
        ):
            joined[-1] = last._replace(
                **{along: _together(getattr(last, along), getattr(piece, along))}
            )
        else:
            joined.append(piece)
    return joined


def _join_causal(squares, full):
    """Two squares and the rectangle between them are one larger square."""
    squares = sorted(squares, key=lambda p: (p.heads, p.q, p.k))
    between = {(p.heads, p.q, p.k): p for p in full}
    joined = []
    for square in squares:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.heads == square.heads
            and _follows(last.q, square.q)
            and _follows(last.k, square.k)
            and (square.heads, square.q, last.k) in between
        ):
            del between[(square.heads, square.q, last.k)]
            joined[-1] = last._replace(
                q=_together(last.q, square.q), k=_together(last.k, square.k)
            )
        else:
            joined.append(square)
    return joined, list(between.values())


def pieces_of(tiles, low, high):
    """Few and large pieces that cover the tiles."""
    cut = [piece for tile in tiles for piece in _cut(tile, low, high)]
    kinds = {kind: [p for p in cut if p.kind == kind] for kind in (FULL, CAUSAL, BAND)}
    causal, full = _join_causal(kinds[CAUSAL], kinds[FULL])
    full = _join_full(_join_full(full, "q", "k"), "k", "q")
    return full + causal + kinds[BAND]


def _sets(lines):
    sets = []
    for line in lines:
        run = Rows(line.k, line.k_step, line.k_count)
        if sets and (sets[-1].head_begin, sets[-1].head_end) == (line.head_begin, line.head_end):
            sets[-1].runs.append(run)
        else:
            sets.append(Set(line.head_begin, line.head_end, [run]))
    return sets


def _rows_in(runs, rows):
    """Where rows of a shard, which travel as ``runs``, lie in the message: `Rows`, one after another."""
    found = []
    while rows.count > 0:
        before = 0
        for run in runs:
            at, off = divmod(rows.begin - run.begin, run.step)
            if off == 0 and 0 <= at < run.count:
                break
            before += run.count
        else:
            raise AssertionError(f"{rows} did not travel")
        step, count = rows.step // run.step, 1
        if rows.step % run.step == 0:
            count = min(rows.count, (run.count - at + step - 1) // step)
        found.append(Rows(before + at, step if count > 1 else 1, count))
        rows = _part(rows, count, rows.count)
    return found


def _of_message(tiles, sets):
    """Tiles whose keys are counted in the message; a tile whose heads lie in several sets is one for each."""
    for tile in tiles:
        for found in sets:
            begin, step = tile.head_begin, tile.head_step
            begin += max(0, -(-(found.head_begin - begin) // step)) * step
            end = min(tile.head_end, found.head_end)
            if begin >= end:
                continue
            done = 0
            for rows in _rows_in(found.runs, Rows(tile.k, tile.k_step, tile.k_count)):
                yield tile._replace(
                    head_begin=begin, head_end=end, k=rows.begin, k_step=rows.step, k_count=rows.count,
                    k_pos=tile.k_pos + done * tile.k_pos_step,
                )  # fmt: skip
                done += rows.count


def schedule_of(plan, backward=False):
    """The `Schedule` of a plan whose keys and values travel; made once."""
    made = plan.__dict__.setdefault("schedules", {})
    if backward not in made:
        made[backward] = _schedule(plan, backward)
    return made[backward]


def _schedule(plan, backward):
    low, high = plan.band_low, plan.band_high
    own, sent, came, tiles = [], {}, {}, {}
    for line in plan.work(backward):
        if line.kind == OWN_TILE:
            own.append(line)
        else:
            into = {SENT: sent, RECEIVED: came, TILE: tiles}[line.kind]
            into.setdefault(line.key, []).append(line)
    sends = {key: (lines[0].peer, _sets(lines)) for key, lines in sent.items()}
    receives = {}
    for key, lines in came.items():
        sets = _sets(lines)
        receives[key] = (
            lines[0].peer,
            sets,
            pieces_of(list(_of_message(tiles[key], sets)), low, high),
        )
    exchanges = plan.exchanges_backward if backward else plan.exchanges_forward
    return Schedule(exchanges, pieces_of(own, low, high), sends, receives)
