"""The ops behind all collectives: their names, tokens, shapes and derivatives.

Ranks match collectives by name. Eager ones without a name are numbered when they start; in a graph, a
place has a name of its own, made when the program is traced: of its function, and a number in it. The gradients are those of `rueda.torch`.
"""

import collections
import dataclasses
import itertools
import re
import struct
import weakref

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor  # for tf.vectorized_map: there is no public way

from rueda import _ffi
from rueda._frameworks import WORDS, replaced
from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.process_sets import registered
from rueda.tensorflow import _library
from rueda.tensorflow._errors import wrong_argument
from rueda.tensorflow._library import ops

LINEAR = (basics.Average, basics.Sum)
_SAME = (_ffi.ALLREDUCE, _ffi.BROADCAST)  # results have the shapes of what is given


@dataclasses.dataclass(frozen=True)
class Spec:
    """What one collective is, without its tensors."""

    kind: int
    op: int = basics.Sum
    root: int = 0  # a rank of the job
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    name: "str | None" = None

    def attributes(self):
        """Of an op, which names several tensors "name", "name[1]", "name[2]", ..."""
        return {
            "kind": self.kind,
            "reduce_op": self.op,
            "root": self.root,
            "process_set": self.process_set,
            "prescale": _bits(self.prescale),
            "postscale": _bits(self.postscale),
            "tensor_name": _name_now(self),
        }

    def backward(self, **changes):
        """Of the gradient: its name is this one's with a suffix."""
        name = self.name and self.name + ".backward"
        return dataclasses.replace(self, name=name, **changes)


def _bits(number):
    """Of a double, as an integer: TensorFlow's own attributes have single precision."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


def _number(bits):
    return struct.unpack("<d", struct.pack("<q", bits))[0]


class _Names:
    """What is called in one graph."""

    def __init__(self):
        self.counts = collections.Counter()  # of unnamed ones
        self.own = set()
        self.of_parts = set()  # of its branches and loops


_names = weakref.WeakKeyDictionary()  # by graph
_PARTS = {"CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph"}


def _name_now(spec):
    """The name of an operation that is called here: \"\" of an eager one without."""
    if tf.executing_eagerly():
        return spec.name or ""
    graphs = [tf.compat.v1.get_default_graph()]
    while not _PARTS.isdisjoint(each.__name__ for each in type(graphs[-1]).__mro__):
        graphs.append(graphs[-1].outer_graph)
    names = [_names.setdefault(each, _Names()) for each in graphs]
    return _numbered(spec, graphs[-1], names[-1].counts) if spec.name is None else _unique(spec.name, *names)


def _numbered(spec, graph, counts):
    key = WORDS[spec.kind]
    if spec.process_set != 0:  # other ranks may count in other sets
        key += f".set{spec.process_set}"
    counts[key] += 1
    return f"tf.{_plain(getattr(graph, 'name', 'graph'))}.{key}.{counts[key]}"


def _unique(name, here, *around):
    """The name, with a number where it is taken, as TensorFlow's ops have it: here, in a part, or around it.

    Not in another branch: only one of them runs.
    """
    taken = set().union(here.own, here.of_parts, *(each.own for each in around))
    candidates = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    found = next(each for each in candidates if each not in taken)
    here.own.add(found)
    for each in around:
        each.of_parts.add(found)
    return found


def _plain(name):
    """Without the numbers that TensorFlow gives graphs through the whole process, which may have traced more on one rank."""
    made = re.fullmatch(r"(__(?:backward|forward|inference)_)(.+)_\d+", name)
    return made[1] + _plain(made[2]) if made else re.sub(r"_\d+$", "", name)


def _refuse_xla():
    """NotImplementedError where a function is being compiled by XLA, which has none of these ops."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise NotImplementedError(
                    "rueda.tensorflow: XLA cannot compile collectives; leave out jit_compile=True for the "
                    "function, or for the model, that calls them"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)


def _token():
    """An int32 tensor that TensorFlow cannot know before the program runs: see bindings/tensorflow/ops.cc.

    Of a random op: these alone are stateful and still not kept in order with prints and the like, beside which
    ranks may then call collectives in any order.
    """
    if tf.executing_eagerly():
        return tf.constant(0)
    _refuse_xla()
    return tf.raw_ops.RandomUniformInt(
        shape=tf.zeros(0, tf.int32), minval=tf.constant(0), maxval=tf.constant(1), seed=1, seed2=1
    )


def collective(tensors, spec):
    """The results, of one operation or of a group that is ready together or not at all."""
    _library.attach()
    run = ops.rueda_same if spec.kind in _SAME else ops.rueda_rows
    results = run(tensors=tensors, token=_token(), **spec.attributes())
    results = [results] if tf.is_tensor(results) else list(results)
    _keep(results[0])
    if spec.kind not in _SAME:
        _set_shapes(tensors, results)
    return results


def alltoall(tensor, splits, spec):
    """What comes, and the rows that came from each rank (int32)."""
    _library.attach()
    splits = tf.zeros(0, tf.int64) if splits is None else _whole_rows(splits)
    result, received = ops.rueda_alltoall(
        tensor=tensor, splits=splits, token=_token(), **spec.attributes()
    )
    _keep(result)
    _set_shapes([tensor], [result])
    return result, received


def _whole_rows(splits):
    """The splits, int64; `WrongArgument` for what are no row counts in a line."""
    splits = tf.convert_to_tensor(splits)
    if not splits.dtype.is_integer or splits.shape.rank not in (1, None):
        raise wrong_argument(
            f"alltoall: splits of {splits.dtype.name} and shape {splits.shape}: expected whole numbers, of rows, one for each rank"
        )
    return tf.cast(tf.ensure_shape(splits, [None]), tf.int64)


def _keep(result):
    """A collective in a function runs also where this rank alone does nothing with its result."""
    if not tf.executing_eagerly():
        getattr(result.graph, "control_outputs", []).append(result.op)


def _forget(op):
    """One that was only traced."""
    kept = getattr(op.graph, "control_outputs", [])
    kept[:] = [each for each in kept if each is not op]


def _set_shapes(tensors, results):
    for tensor, result in zip(tensors, results):
        if not hasattr(result, "numpy") and tensor.shape.rank:
            result.set_shape([None, *tensor.shape[1:]])


# Batches: tf.vectorized_map, and the jacobians of tapes.


@pfor.RegisterPFor("RuedaSame")
def _batched(step):
    """A batch travels whole, in one operation."""
    spec = _spec_of(step.op)
    if spec.op == basics.Adasum:
        raise NotImplementedError(
            "rueda.tensorflow: tf.vectorized_map would make one vector of a batch, which Adasum takes as a whole; use tf.map_fn"
        )
    _forget(step.op)
    places = range(step.num_inputs - 1)
    step.stack_inputs(places)
    return [pfor.wrap(each, True) for each in collective([step.stacked_input(i) for i in places], spec)]


@pfor.RegisterPFor("RuedaRows")
@pfor.RegisterPFor("RuedaAlltoall")
def _not_batched(step):
    raise NotImplementedError(
        f"rueda.tensorflow: {WORDS[step.op.get_attr('kind')]} in tf.vectorized_map: use tf.map_fn, which sends one after the other"
    )


# Derivatives.


def _spec_of(op):
    return Spec(
        op.get_attr("kind"),
        op.get_attr("reduce_op"),
        op.get_attr("root"),
        op.get_attr("process_set"),
        _number(op.get_attr("prescale")),
        _number(op.get_attr("postscale")),
        _user_name(op),
    )


def _user_name(op):
    name = op.get_attr("tensor_name").decode()
    return None if not name or name.startswith("tf.") else name


def _moving(op, grads):
    """Places of the tensors that have derivatives, and the gradients there."""
    count = len(grads)
    places = [
        i for i in range(count) if op.inputs[i].dtype.is_floating or op.inputs[i].dtype.is_complex
    ]
    return places, [tf.convert_to_tensor(grads[i]) for i in places]


def _spread(places, values, op):
    return replaced([None] * len(op.inputs), places, values)  # the token has none


@tf.RegisterGradient("RuedaSame")
def _same_gradient(op, *grads):
    spec = _spec_of(op)
    places, given = _moving(op, grads)
    if spec.kind == _ffi.BROADCAST:
        average = spec.backward(kind=_ffi.ALLREDUCE, op=basics.Average, prescale=1.0, postscale=1.0)
        reduced = collective(given, average)
        if runtime.place.rank != spec.root:
            reduced = [tf.zeros_like(each) for each in reduced]
        return _spread(places, reduced, op)
    if spec.op not in LINEAR:
        raise NotImplementedError(
            "rueda.tensorflow: allreduce has derivatives with op=Average and op=Sum only; use "
            "tf.stop_gradient where none is wanted"
        )
    return _spread(places, collective(given, spec.backward()), op)


@tf.RegisterGradient("RuedaRows")
def _rows_gradient(op, *grads):
    spec = _spec_of(op)
    places, given = _moving(op, grads)
    members = registered(spec.process_set)
    size, place = members.size(), members.rank()
    if spec.kind == _ffi.REDUCESCATTER:
        factor = spec.prescale * spec.postscale * (size if spec.op == basics.Sum else 1)
        if spec.op not in LINEAR:
            raise NotImplementedError(
                "rueda.tensorflow: reducescatter has derivatives with op=Average and op=Sum only"
            )
        gathered = collective(given, spec.backward(kind=_ffi.ALLGATHER, prescale=1.0, postscale=1.0))
        return _spread(places, [each * tf.cast(factor, each.dtype) for each in gathered], op)
    average = spec.backward(kind=_ffi.ALLREDUCE, op=basics.Average)
    reduced = collective(given, average)
    rows = tf.stack([tf.shape(op.inputs[i], tf.int64)[0] for i in places])
    name = spec.name and spec.name + ".rows"
    (all_rows,) = collective([rows[None]], dataclasses.replace(spec, name=name))
    before = tf.reduce_sum(all_rows[:place], 0)
    mine = [each[before[n] : before[n] + rows[n]] for n, each in enumerate(reduced)]
    return _spread(places, mine, op)


@tf.RegisterGradient("RuedaAlltoall")
def _alltoall_gradient(op, grad, _):
    back, _ = alltoall(grad, op.outputs[1], _spec_of(op).backward())
    return [back, None, None]
