"""The program of a plan as its kernels see it: buffers, and for each instruction the parts of its message and its pieces.

What runs it, its order and its messages are the library's (attention/executor.h); this is what rueda_attention_plan_work says of it.
"""

import collections

# As attention/program.h numbers them.
OPS = TRANSPOSE, DELTA, CLEAR, PACK, SEND, RECEIVE, UNPACK, ATTEND, MERGE, FINISH, SUM_HEADS, FREE = range(12)
ROLES = (
    MESSAGE, Q, K, V, OUT, LSE, DOUT, DLSE, DQ, DK, DV, LSE_ROWS, OWN_DELTA, GROUP_Q, GROUP_K, GROUP_V, GROUP_OUT, GROUP_LSE,
    GROUP_DOUT, GROUP_DELTA, GROUP_DQ, GROUP_DK, GROUP_DV, LSE_LOW, SUM_WEIGHTS, SUM_OUT, SUM_DQ, SUM_DK, SUM_DV, OWN_SUM_DK,
    OWN_SUM_DV, WIDENED,
) = range(32)  # fmt: skip
SAVED, SLOT = 2, 3  # homes
FULL, CAUSAL, BAND = "full", "causal", "band"
_KINDS = FULL, CAUSAL, BAND

Buffer = collections.namedtuple("Buffer", "role home slot bytes")
Rows = collections.namedtuple("Rows", "begin step count")
Rows.__doc__ = "Rows begin, begin + step, ...: ``count`` of them."

Piece = collections.namedtuple("Piece", "kind heads q k place set")
Piece.__doc__ = """One kernel call. ``heads``: KV heads (begin, end, step), numbers of the whole model. ``q``, ``k``: `Rows`.
``place`` of a band, and with ALiBi of all: (q_pos, q_step, k_pos, k_step, low, high); query i sees key j where
low <= (k_pos + j * k_step) - (q_pos + i * q_step) <= high. ``set``: of the message, whose rows the side that travels has; -1:
all rows are the rank's own."""

Part = collections.namedtuple("Part", "role set head heads rows offset bytes scales add runs")
Part.__doc__ = """``rows`` rows (``runs``: `Rows` of the tensor ``role``) and heads [head, head + heads) of a tensor in a message, from
byte ``offset`` on."""

Step = collections.namedtuple("Step", "op stage message reply last came parts replies pieces")
Step.__doc__ = """An instruction. ``came``: attends to rows of another rank. ``parts`` of its message, ``replies`` of its reply, `Piece`s."""


class Program:
    """Of one plan and pass: ``buffers``, ``steps``, ``found`` (role -> number of its buffer)."""

    def __init__(self, plan, backward):
        self.backward = backward
        self.buffers, self.steps = [], []
        band, places = (plan.band_low, plan.band_high), bool(plan.spec.alibi_slopes)
        for kind, *n in plan.work(backward):
            if kind == 0:
                self.buffers.append(Buffer(*n[:4]))
            elif kind == 1:
                self.steps.append(Step(*n[:4], bool(n[4]), bool(n[5]), [], [], []))
            elif kind == 2:
                runs = []
                into = self.steps[-1].replies if n[0] else self.steps[-1].parts
                into.append(Part(*n[1:9], bool(n[9]), runs))
            elif kind == 3:
                runs.append(Rows(*n[:3]))
            else:
                place = (*n[10:14], *band) if places or _KINDS[n[0]] == BAND else None
                self.steps[-1].pieces.append(
                    Piece(_KINDS[n[0]], tuple(n[1:4]), Rows(*n[4:7]), Rows(*n[7:10]), place, n[14])
                )
        self.found = {}
        for number, buffer in enumerate(self.buffers):
            if buffer.role != MESSAGE:
                self.found.setdefault(buffer.role, number)
        self.has_bands = any(piece.kind == BAND for step in self.steps for piece in step.pieces)

    def has(self, role):
        """Whether there is a buffer of the role."""
        return role in self.found


def program_of(plan, backward):
    """Made once for each plan."""
    made = plan.__dict__.setdefault("programs", {})
    if backward not in made:
        made[backward] = Program(plan, backward)
    return made[backward]
