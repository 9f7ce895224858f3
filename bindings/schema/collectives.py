"""Every collective of the Python surfaces, once: plain data.

`generate.py` writes from it, for NumPy and PyTorch, the functions with their docstrings, the operations
of torch.compile's graphs, and the table that tests compare the packages with. An operation is added
here, and in `rueda/_collectives.py`, which hands it to the library; so is a form of one.

Words in braces differ between the surfaces: {tensor}, {a tensor}, {tensors} are an array, an array and
arrays in NumPy.
"""

from typing import NamedTuple, Tuple

# Forms of a collective, as they are named: allreduce, allreduce_, allreduce_async, allreduce_async_.
BLOCKING, IN_PLACE, ASYNC, ASYNC_IN_PLACE = "", "_", "_async", "_async_"

# Result's rows (of dimension 0): as many as the tensor's; this rank's share of them; those of all ranks;
# what the others sent. The last two are known only when the operation has run.
SAME, SHARE, GATHERED, RECEIVED = "same", "share", "gathered", "received"

# Where an argument exists.
EVERYWHERE, OUT_OF_PLACE, BLOCKING_OUT_OF_PLACE = "everywhere", "out of place", "blocking out of place"


class Argument(NamedTuple):
    """An argument behind the tensor.

    default : str
        Python text; "" if it must be given.
    kind, doc : str
        For docstrings. No ``doc``: it is not worth a line.
    graph : str
        Its type in the operations of graphs; "": they do not get it.
    forms : str
        Where it exists.
    grouped : bool
        Whether grouped forms have it too.
    """

    name: str
    default: str = ""
    kind: str = ""
    doc: str = ""
    graph: str = ""
    forms: str = EVERYWHERE
    grouped: bool = True


class Gradient(NamedTuple):
    """Of the tensor, from that of the result.

    rule : str
        For generators and whoever computes it (`rueda.torch._autograd`).
    words : str
        For docstrings.
    """

    rule: str
    words: str


ITSELF = Gradient(
    "the operation itself",
    "the same reduction of the gradients; of Min and Max, to the ranks that have the extreme value",
)
OWN_ROWS = Gradient(
    "average, own rows", "the average of the ranks' gradients for this rank's rows"
)
AT_ROOT = Gradient(
    "average, at the root", "the average of the ranks' gradients on the root, zero elsewhere"
)
SENT_BACK = Gradient("sent back", "each row's gradient, which comes back from the rank that got it")
PUT_TOGETHER = Gradient("gathered", "the ranks' gradients of their rows, put together")


class Collective(NamedTuple):
    """One operation.

    summary, notes : str
        Beginning and second paragraph of its docstring.
    arguments : tuple of Argument
        In Horovod's order; what is rueda's own comes behind.
    result : str
        Of its docstring.
    rows : str
        Rows of the result: SAME, SHARE, GATHERED or RECEIVED. All else of it, its type too, is the tensor's.
    tensor : str
        What the tensor must be.
    gradient : Gradient
    extra : tuple of str
        Name and type of a second result, which blocking forms give to who gave ``splits``.
    errors : tuple of (exception, when)
        Besides those of all operations.
    in_place, grouped : bool
        Which forms there are besides the blocking one and ``*_async``.
    again : bool
        Whether a result of the tensor's own form is handed over when one comes again in the same form; else
        it is the library's memory.
    """

    name: str
    summary: str
    arguments: Tuple[Argument, ...]
    result: str
    rows: str
    tensor: str
    gradient: Gradient
    notes: str = ""
    extra: Tuple[str, ...] = ()
    errors: Tuple[Tuple[str, str], ...] = ()
    in_place: bool = False
    grouped: bool = False
    again: bool = False

    @property
    def code(self):
        """Its RUEDA_ kind."""
        return self.name.upper()

    def has(self, argument):
        return any(each.name == argument for each in self.arguments)


class Message(NamedTuple):
    """What passes between two ranks: a blocking form and ``*_async``."""

    name: str
    summary: str
    peer: str
    returns: bool  # the tensor


_NAME = Argument(
    "name",
    "None",
    "str, optional",
    "By which the ranks' calls meet; without, the n-th unnamed call of a kind meets the n-th of the "
    "others. Give one to what recurs: it costs less from the second time on.",
    graph="str?",
)
_AVERAGE = Argument(
    "average", "None", "bool, optional", "Deprecated: True is ``op=Average``, False is ``op=Sum``."
)
_COMPRESSION = Argument(
    "compression",
    "Compression.none",
    "",
    "One of `Compression`: what the {tensor} travels as.",
    forms=BLOCKING_OUT_OF_PLACE,
)
_ANY_OP = Argument(
    "op",
    "None",
    "int, optional",
    "Average (default), Sum, Adasum, Min, Max or Product. Average of integers truncates toward zero.",
    graph="int",
)
_SUM_OP = Argument("op", "Average", "int", "Average or Sum.", graph="int")
_SCALES = (
    Argument("prescale_factor", "1.0", "float", graph="float"),
    Argument(
        "postscale_factor",
        "1.0",
        "float",
        "Multiply the input before, the result after the reduction.",
        graph="float",
    ),
)
_ROOT = Argument("root_rank", "", "int", "A rank of the job, member of the process set.", graph="int")
_SPLITS = Argument(
    "splits",
    "None",
    "list of int, or {tensor} of integers, optional",
    "Rows for each rank; the rest of the {tensor} is not sent. Without, every rank gets an equal part.",
    graph="Tensor?",
)
_PROCESS_SET = Argument(
    "process_set", "global_process_set", "ProcessSet", "The ranks that take part.", graph="int"
)
_OUT = Argument(
    "out",
    "None",
    "{class}, optional",
    "Where the result is written, and what is returned then: contiguous, with the result's shape and "
    "type{out}.",
    forms=OUT_OF_PLACE,
    grouped=False,
)
_OUT_ROWS = _OUT._replace(
    doc=_OUT.doc + " The rows that come must be exactly as many; else every rank gets HorovodInternalError."
)

COLLECTIVES = (
    Collective(
        "allreduce",
        "Reduces {a tensor} element by element over all ranks; every rank gets the same result.",
        (_AVERAGE, _NAME, _COMPRESSION, _ANY_OP, *_SCALES, _PROCESS_SET, _OUT),
        "The {tensor}'s shape and type.",
        SAME,
        "Same shape and type on every rank.",
        ITSELF,
        in_place=True,
        grouped=True,
        again=True,
    ),
    Collective(
        "allgather",
        "Concatenates the ranks' {tensors} along dimension 0 in rank order.",
        (_NAME, _PROCESS_SET, _OUT_ROWS),
        "The {tensor}'s shape and type, with the rows of all ranks.",
        GATHERED,
        "Same shape on every rank, but for the first extent, and same type.",
        OWN_ROWS,
        errors=(("WrongCallError, which is both", "The {tensor} has no dimension."),),
        grouped=True,
    ),
    Collective(
        "broadcast",
        "Returns on every rank what ``root_rank`` passed in.",
        (_ROOT, _NAME, _PROCESS_SET, _OUT),
        "The {tensor}'s shape and type.",
        SAME,
        "Same shape and type on every rank.",
        AT_ROOT,
        errors=(("ValueError", "There is no such rank, or the process set does not have it."),),
        in_place=True,
        again=True,
    ),
    Collective(
        "alltoall",
        "Sends the first ``splits[0]`` rows to rank 0, the next ``splits[1]`` to rank 1, and so on.",
        (_SPLITS, _NAME, _PROCESS_SET, _OUT_ROWS),
        "The received rows in rank order, of the {tensor}'s type; with ``splits`` given, also how many "
        "came from each rank (int32).",
        RECEIVED,
        "Same shape on every rank, but for the first extent, and same type.",
        SENT_BACK,
        extra=("received_splits", "int32"),
        errors=(
            ("ValueError", "The splits do not fit, or without them the rows cannot be divided evenly."),
            ("WrongCallError, which is both", "The {tensor} has no dimension."),
        ),
    ),
    Collective(
        "reducescatter",
        "Reduces {a tensor} element by element over all ranks and returns this rank's rows of the result.",
        (_NAME, _COMPRESSION, _SUM_OP, _PROCESS_SET, *_SCALES, _OUT),
        "The {tensor}'s shape and type, with this rank's rows.",
        SHARE,
        "Same shape and type on every rank.",
        PUT_TOGETHER,
        notes="Rows are cut evenly; the first ``rows % size()`` ranks get one more.",
        errors=(
            ("ValueError", "The {tensor} has no dimension."),
            ("WrongCallError, which is both", "Another ``op``."),
        ),
        grouped=True,
    ),
)

MESSAGES = (
    Message("send", "Sends {a tensor} to rank ``dst``; matched with `recv` by (ranks, tag) in order.", "dst", False),
    Message(
        "recv", "Receives from rank ``src`` into {a tensor} of the sender's size and type; returns it.", "src", True
    ),
)

# Both at once, between two ranks each: a blocking form and ``*_async``.
EXCHANGE = "sendrecv"

# Raises of every collective.
ERRORS = (
    ("ValueError", "The call is wrong on this rank: a type, a layout, a process set, a name in flight."),
    ("HorovodInternalError", "The ranks disagree, or one was lost; it is named."),
)
