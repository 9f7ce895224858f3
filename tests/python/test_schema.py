"""Generated files are what the schema and the C header give now; the header's parser says what it does not know."""

import ctypes
import pathlib
import subprocess
import sys

import horovod_facts as facts
import pytest
import surface_table

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "bindings" / "schema"
sys.path.insert(0, str(SCHEMA))

import ffi  # noqa: E402
import generate  # noqa: E402


@pytest.mark.parametrize("program", ["generate.py", "ffi.py"])
def test_generated_files_are_current(program):
    done = subprocess.run([sys.executable, SCHEMA / program, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_that_was_edited_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(ffi, "ROOT", tmp_path)
    monkeypatch.setattr(ffi, "OUTPUT", tmp_path / "_abi.py")
    for name in generate.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for module, edited in ((generate, "bindings/python/rueda/torch/_async.py"), (ffi, "_abi.py")):
        monkeypatch.setattr(sys, "argv", ["program"])
        module.main()
        monkeypatch.setattr(sys, "argv", ["program", "--check"])
        module.main()
        with open(tmp_path / edited, "a") as file:
            file.write("# by hand\n")
        with pytest.raises(SystemExit) as said:
            module.main()
        assert edited in str(said.value) and "bindings/schema/" in str(said.value)


def test_the_collectives_begin_with_horovods_parameters():
    """In both surfaces; what is rueda's own stands behind and has a default."""
    table = surface_table.COLLECTIVES
    horovods = {name: text for name, text in facts._OPERATIONS.items() if name in table}
    assert len(horovods) == 22 and set(table) - set(horovods) == {
        "send", "send_async", "recv", "recv_async", "sendrecv", "sendrecv_async",
    }
    for name, text in horovods.items():
        found, wanted = table[name].split(", "), text.split(", ")
        assert found[: len(wanted)] == wanted, name
        assert all("=" in extra for extra in found[len(wanted) :]), name


def test_docstrings_tell_shapes_types_and_errors():
    import rueda
    import rueda.torch

    for module, words in ((rueda, "numpy.ndarray"), (rueda.torch, "torch.Tensor")):
        for name in surface_table.COLLECTIVES:
            text = getattr(module, name).__doc__
            assert text and "{" not in text, name
            if name in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter"):
                for part in ("Parameters\n", "Returns\n", "Raises\n", words, "shape", "type", "ValueError"):
                    assert part in text, (name, part)


# The parser.

HEADER = """
#ifndef RUEDA_RUEDA_H_
#define RUEDA_RUEDA_H_
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define RUEDA_ABI_VERSION 3 /* a comment */
#define RUEDA_VERSION "1.2 // no comment"
#define RUEDA_MASK (1u << 4)
#define RUEDA_BYTES 0x10
#define RUEDA_DESC_INIT \\
  {sizeof(rueda_desc), \\
   0}
typedef enum rueda_color { RUEDA_RED, RUEDA_GREEN = 4, RUEDA_BLUE, RUEDA_FLAG = 1 << 3, RUEDA_LESS = -2 } rueda_color;
typedef struct rueda_request rueda_request; /* opaque */
typedef void (*rueda_done)(rueda_request* request, void* user,
                           int32_t code);
typedef struct rueda_part { const int64_t* shape; uint8_t tag; } rueda_part;
typedef struct rueda_desc {
  size_t struct_size;
  const rueda_part *first, *const second; // two
  rueda_part whole;
  float (*score)(const rueda_part* part, float* scratch);
  rueda_done done;
  double numbers[RUEDA_BYTES], one;
  char text[1 << 3];
  const void* const* tables;
  const char* name;
} rueda_desc;
RUEDA_API int32_t rueda_start(const rueda_desc* desc, rueda_request** request,
                              rueda_done done,
                              size_t count);
RUEDA_API const char* rueda_name(void);
RUEDA_API void rueda_stop(rueda_request* request);
#ifdef __cplusplus
}
#endif
#endif
"""


def module_of(text):
    module = {}
    exec(ffi.generate(ffi.Parser(text).parse()), module)
    return module


def test_a_header_becomes_constants_structs_and_signatures():
    module = module_of(HEADER)
    assert [module[n] for n in ("ABI_VERSION", "VERSION", "MASK", "BYTES")] == [3, "1.2 // no comment", 16, 16]
    assert [module[n] for n in ("RED", "GREEN", "BLUE", "FLAG", "LESS")] == [0, 4, 5, 8, -2]
    part, desc, done = module["Part"], module["Desc"], module["Done"]
    assert issubclass(done, ctypes._CFuncPtr)
    assert done._restype_ is None and done._argtypes_ == (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    fields = dict(desc._fields_)
    assert fields["first"] is fields["second"] is ctypes.POINTER(part) and fields["whole"] is part
    assert fields["done"] is done and fields["score"]._argtypes_ == (ctypes.POINTER(part), ctypes.c_void_p)
    assert fields["numbers"]._length_ == 16 and fields["one"] is ctypes.c_double
    assert fields["text"]._length_ == 8 and fields["name"] is ctypes.c_char_p
    assert fields["tables"] is ctypes.POINTER(ctypes.c_void_p)
    assert desc().struct_size == ctypes.sizeof(desc)  # the library fills it in: it has room for text
    pointers = ctypes.POINTER(desc), ctypes.POINTER(ctypes.c_void_p)
    assert module["FUNCTIONS"] == {
        "rueda_start": (ctypes.c_int32, [*pointers, done, ctypes.c_size_t]),
        "rueda_name": (ctypes.c_char_p, []),
        "rueda_stop": (None, [ctypes.c_void_p]),
    }


@pytest.mark.parametrize(
    "line, reason",
    [
        ("RUEDA_API rueda_color2 rueda_f(void);", "unknown type rueda_color2"),
        ("RUEDA_API rueda_request rueda_f(void);", "by value, whose fields are not known"),
        ("RUEDA_API int32_t rueda_f();", "() without void"),
        ("RUEDA_API int32_t rueda_f(int32_t a, ...);", "unexpected '.'"),
        ("RUEDA_API int32_t rueda_stop(void);", "rueda_stop is declared twice"),
        ("static int32_t rueda_f(void);", "expected 'typedef' or 'RUEDA_API', found 'static'"),
        ("typedef union rueda_u { int32_t a; } rueda_u;", "expected '('"),
        ("typedef struct rueda_s { int32_t a : 3; } rueda_s;", "unexpected ':'"),
        ("typedef struct rueda_s { int32_t a[2][3]; } rueda_s;", "more than one dimension"),
        ("typedef struct rueda_s { int32_t a; } rueda_t;", "expected 'rueda_s', found 'rueda_t'"),
        ("typedef struct rueda_s { rueda_s* next; } rueda_s;", "unknown type rueda_s"),
        ("typedef enum rueda_e { RUEDA_X = sizeof(int) } rueda_e;", "expected a number, found 'sizeof'"),
        ("typedef enum rueda_e { RUEDA_RED } rueda_e;", "RUEDA_RED is defined twice"),
        ("#define RUEDA_SUM 1 + 2", "unexpected '+'"),
        ("#define RUEDA_MAX(a) a", "unknown define RUEDA_MAX(a)"),
        ("#define OTHER 1", "unknown define OTHER"),
        ("#if RUEDA_X > 3\n#endif", "unknown condition"),
        ("#pragma pack(1)", "unknown line #pragma"),
        ("RUEDA_API int32_t rueda_f(void)", "ends in the middle of a declaration"),
    ],
)
def test_what_the_parser_does_not_understand_is_an_error_with_its_line(line, reason):
    text = HEADER.rstrip().removesuffix("#endif").rstrip()
    number = len(text.split("\n")) + 1
    with pytest.raises(ffi.HeaderError) as said:
        ffi.generate(ffi.Parser(f"{text}\n{line}\n#endif").parse())
    assert reason in str(said.value), said.value
    assert str(said.value).startswith(f"rueda.h:{number}: "), said.value
