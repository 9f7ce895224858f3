"""Files of safetensors: 8 bytes that count the header's, a header of JSON, and the tensors' bytes one behind the other.

Source: https://github.com/huggingface/safetensors. Tensors are written and read one by one, and in part: no more of
a file than that is ever in memory.
"""

import json
import os
import struct

import torch

from rueda.torch._files import read_all, write_all

_DTYPES = {
    name: getattr(torch, dtype)
    for name, dtype in (
        ("F64", "float64"),
        ("F32", "float32"),
        ("F16", "float16"),
        ("BF16", "bfloat16"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E5M2", "float8_e5m2"),
        ("I64", "int64"),
        ("I32", "int32"),
        ("I16", "int16"),
        ("I8", "int8"),
        ("U8", "uint8"),
        ("BOOL", "bool"),
    )
    if hasattr(torch, dtype)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_HEADER = 100_000_000  # bytes; the format's own limit


def itemsize(dtype):
    return torch.empty(0, dtype=dtype).element_size()


def dtype_name(dtype):
    """What the format calls it; ValueError: it has no name for it."""
    if dtype not in _NAMES:
        raise ValueError(f"{dtype} cannot be written to a file of safetensors")
    return _NAMES[dtype]


def dtype_called(name):
    if name not in _DTYPES:
        raise ValueError(f"a file of safetensors has the type {name!r}, which is not known here")
    return _DTYPES[name]


def _bytes_of(tensor):
    """The memory of a contiguous tensor."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def header_of(forms, metadata=None):
    """What a file begins with, and how many bytes each tensor has behind it. Arguments: see `Writer`."""
    header, end, sizes = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape) in forms.items():
        count = itemsize(dtype) * _product(shape)
        header[name] = {"dtype": dtype_name(dtype), "shape": list(shape), "data_offsets": [end, end + count]}
        sizes.append(count)
        end += count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, sizes


class Writer:
    """Writes a new file.

    Parameters
    ----------
    path : str
        Of a file that is not there.
    forms : dict
        Of each tensor's name, (dtype, shape); `write` gets them in this order.
    metadata : dict, optional
        Of strings.
    """

    def __init__(self, path, forms, metadata=None):
        text, self._sizes = header_of(forms, metadata)
        self._path, self._sizes, self._end = path, iter(self._sizes), 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            self._write(memoryview(text))
        except BaseException:
            os.close(self._file)
            raise

    def write(self, tensor):
        """The next one."""
        data = _bytes_of(tensor.contiguous())
        expected = next(self._sizes)
        if len(data) != expected:
            raise ValueError(f"{self._path}: {len(data)} bytes of a tensor that has {expected}")
        self._write(data)

    def _write(self, data):
        write_all(self._file, data, self._end)
        self._end += len(data)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """On disk, if there was no error."""
        try:
            if kind is None:
                if next(self._sizes, None) is not None:
                    raise ValueError(f"{self._path}: not all tensors were written")
                os.fsync(self._file)
        finally:
            os.close(self._file)


class File:
    """Reads one. ValueError says what is wrong with a file that is none.

    Attributes
    ----------
    forms : dict
        Of each tensor's name, (dtype, shape).
    metadata : dict
    """

    def __init__(self, path):
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._read_header()
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, struct.error) as error:
            self.close()
            raise ValueError(f"{path} is no file of safetensors: {error}") from error
        except BaseException:
            self.close()
            raise

    def _read_header(self):
        size = os.fstat(self._file).st_size
        (length,) = struct.unpack("<Q", os.pread(self._file, 8, 0))
        if length > min(_MOST_HEADER, size - 8):
            raise ValueError(f"{self.path} is no file of safetensors, or was cut off: its header would have {length} bytes")
        header = json.loads(os.pread(self._file, length, 8).decode())
        self.metadata = header.pop("__metadata__", {})
        self.forms, self._begins = {}, {}
        for name, entry in header.items():
            dtype, shape = dtype_called(entry["dtype"]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= size - 8 - length or end - begin != _product(shape) * itemsize(dtype):
                raise ValueError(f"{self.path} was cut off, or is no file of safetensors: {name} does not lie in it")
            self.forms[name], self._begins[name] = (dtype, shape), 8 + length + begin

    def read(self, name, first=0, last=None):
        """The elements [first, last) of a tensor, flat."""
        dtype, shape = self.forms[name]
        count = _product(shape)
        last = count if last is None else last
        if not 0 <= first <= last <= count:
            raise ValueError(f"{self.path}: {name} has {count} elements, not [{first}, {last})")
        result = torch.empty(last - first, dtype=dtype)
        data, at = _bytes_of(result), self._begins[name] + first * itemsize(dtype)
        if not read_all(self._file, data, at):
            raise ValueError(f"{self.path} was cut off while it was read")
        return result

    def tensor(self, name):
        return self.read(name).view(self.forms[name][1])

    def close(self):
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self):
        if getattr(self, "_file", -1) >= 0:
            self.close()


def _product(shape):
    count = 1
    for extent in shape:
        if not isinstance(extent, int) or extent < 0:
            raise ValueError(f"{shape} is no shape")
        count *= extent
    return count


def save(path, tensors):
    """A dict of tensors, whole."""
    with Writer(path, {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}, {"format": "pt"}) as writer:
        for tensor in tensors.values():
            writer.write(tensor)
