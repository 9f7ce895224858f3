"""The adapter for numpy.ndarray, and the short way of a blocking operation that came before."""

from rueda import _ranges, _replay
from rueda._collectives import Collectives
from rueda._dtypes import CODES
from rueda._forms import Form
from rueda._memory import memory_view
from rueda._numpy import np
from rueda._runtime import runtime

_codes = {}  # dtype: rueda_dtype, of those that have come so far; a dtype's name is slow to get


class _AsArray:
    """``np.asarray`` itself, in its own place from the first use on."""

    def __get__(self, instance, owner):
        Arrays.take = staticmethod(np.asarray)
        return np.asarray


class Arrays:
    """What `Collectives` needs to know about an array."""

    take = _AsArray()

    @staticmethod
    def describe(array):
        code = _codes.get(array.dtype)
        if code is None:
            code = CODES.get(array.dtype.name)
            if code is None or not array.dtype.isnative:
                raise ValueError(f"Array dtype {array.dtype.str} ({array.dtype}) is not supported.")
            _codes[array.dtype] = code
        return code

    @staticmethod
    def shape(array):
        return array.shape

    @staticmethod
    def address(array):
        return array.ctypes.data

    @staticmethod
    def nbytes(array):
        return array.nbytes

    @staticmethod
    def packed(array):
        return array.flags.c_contiguous

    @staticmethod
    def pack(array):
        return np.asarray(array, order="C")

    @staticmethod
    def empty(shape, like):
        return np.empty(shape, like.dtype)

    @staticmethod
    def awaited(array, like):
        like = array if like is None else like
        if not (hasattr(like, "shape") and hasattr(like, "dtype")):
            raise ValueError(f"like: expected an array, got {type(like).__name__}")
        return np.empty(like.shape, like.dtype)

    @staticmethod
    def describe_in_place(array):
        Arrays.check_out(array, None)
        return Arrays.describe(array)

    @staticmethod
    def check_out(out, array):
        if not isinstance(out, np.ndarray):
            raise ValueError(f"a result is written to a numpy.ndarray, not a {type(out).__name__}")
        if not out.flags.writeable:
            raise ValueError("a result needs a writable array")

    @staticmethod
    def adopt(address, shape, like, owner):
        nbytes = like.itemsize
        for extent in shape:
            nbytes *= extent
        if nbytes == 0:
            return np.empty(shape, like.dtype)
        return np.ndarray(shape, like.dtype, memory_view(address, nbytes, owner))

    @staticmethod
    def read_splits(splits):
        if splits is None:
            return None
        splits = np.asarray(splits)
        if splits.ndim != 1 or (splits.size and splits.dtype.kind not in "iu"):
            raise ValueError("alltoall: splits must be a one-dimensional list of whole numbers")
        return splits.tolist()

    @staticmethod
    def splits(counts):
        return np.array(counts, np.int32)

    @staticmethod
    def place(array):
        return -1, None


collectives, blocking = Collectives(Arrays), Collectives(Arrays, wait=True)


def run_again(kind, name, array, out, *rest):
    """The result of an operation that came before in this form; None: take the ordinary way.

    ``out``: as in `Collectives`. ``rest``: the fields of `Operation` that it gives for this kind, in
    its order.
    """
    if _replay.entered or _ranges.is_on() or type(array) is not np.ndarray:
        return None
    if name is not None and type(name) is not str:
        return None
    request = runtime.take((kind, name, array.dtype, array.shape, *rest))
    if request is None:
        return None
    flags = array.flags
    if out is None:
        fits, output = flags.c_contiguous, np.empty(array.shape, array.dtype)
    else:
        can_take = flags.writeable if out is array else _can_take(out, array)
        fits, output = flags.c_contiguous and can_take, out
    if not fits:
        request.put_back()
        return None
    addresses = array.ctypes.data, output.ctypes.data
    run = runtime.run if type(name) is str else runtime.run_alike
    return output if run(request, *addresses, (array, output)) else None


def receive_again(kind, name, array, *rest):
    """The same of an operation whose result is the library's memory."""
    if _replay.entered or _ranges.is_on() or type(array) is not np.ndarray:
        return None
    if name is not None and type(name) is not str:
        return None
    form = runtime.take((kind, name, array.dtype, array.shape, *rest))
    if form is None:
        return None
    if type(form) is not Form or not array.flags.c_contiguous:
        form.put_back()
        return None
    return runtime.run_alike(form, array.ctypes.data, None, array, Arrays.adopt)


def _can_take(out, array):
    """Whether a result of the array's form can be written to ``out``."""
    if type(out) is not np.ndarray or out.dtype != array.dtype or out.shape != array.shape:
        return False
    return out.flags.carray and not np.may_share_memory(out, array)
