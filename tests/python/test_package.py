"""The package as such: its syntax, its signatures, its mirror of the C header, its imports."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest
import rueda
import rueda.torch
from rueda import _ffi
from surface_table import COLLECTIVES

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "schema"))

import ffi  # noqa: E402

HEADERS = ROOT / "bindings" / "c" / "include"
FOLDERS = [ROOT / "bindings" / "python", ROOT / "bindings" / "schema", ROOT / "examples"]
SOURCES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]


def test_every_file_is_python_3_9():
    assert len(SOURCES) > 15
    for path in SOURCES:
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


def test_importing_rueda_imports_numpy_and_nothing_else_from_outside():
    program = (
        "import sys; import rueda; tops = {m.split('.')[0] for m in sys.modules};"
        "print([t for t in ('torch', 'ml_dtypes', 'cloudpickle', 'pytest') if t in tops])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_ranks_do_not_load_what_starts_jobs():
    program = "import sys; import rueda; sys.exit('rueda.compat.run' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert rueda.run.__module__ == "rueda.compat.run"
    with pytest.raises(AttributeError, match="no attribute 'running'"):
        rueda.running


# Horovod's signatures; what rueda has besides stands at the end of each. Of the collectives the schema has them,
# which test_schema compares with Horovod's.
SIGNATURES = {
    "init": "comm=None, process_sets=None, *, rank=None, size=None, job=None, rendezvous=None, key=None",
    "shutdown": "",
    "is_initialized": "",
    "rank": "",
    "size": "",
    "local_rank": "",
    "local_size": "",
    "cross_rank": "",
    "cross_size": "",
    "mpi_threads_supported": "",
    "mpi_enabled": "",
    "mpi_built": "",
    "gloo_enabled": "",
    "gloo_built": "",
    "nccl_built": "",
    "ddl_built": "",
    "ccl_built": "",
    "cuda_built": "",
    "rocm_built": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "join": "device=-1, process_set=SET",
    "barrier": "process_set=SET",
    "poll": "handle",
    "synchronize": "handle, timeout=None",
    "broadcast_parameters": "params, root_rank, process_set=SET",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=SET",
    "allgather_object": "obj, name=None, process_set=SET",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "get_process_set_ids_and_ranks": "",
    "process_set_included": "process_set_id=0",
    **COLLECTIVES,
}
TORCH_SIGNATURES = {
    "sparse_allreduce_async": "tensor, name, op, process_set=SET",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None, process_set=SET",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=NONE, "
    "backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
    "sparse_as_dense=False, process_set=SET, gradients_in_arena=None, shard=None, share=None, state_dtype=None, "
    "offload=None, module=None, units=None, init=None",
}


def spelled(module, function):
    def default(value):
        known = {id(module.Compression.none): "NONE", id(module.global_process_set): "SET"}
        return known.get(id(value), repr(value))

    said = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in said:
            said.append("*")
        said.append(p.name + ("" if p.default is p.empty else "=" + default(p.default)))
    return ", ".join(said)


@pytest.mark.parametrize("module", [rueda, rueda.torch], ids=["numpy", "torch"])
def test_names_and_argument_order_are_horovods(module):
    wanted = dict(SIGNATURES, **(TORCH_SIGNATURES if module is rueda.torch else {}))
    found = {name: spelled(module, getattr(module, name)) for name in wanted}
    assert found == wanted
    ops = [getattr(module, n) for n in ("Average", "Sum", "Adasum", "Min", "Max", "Product")]
    assert ops == [0, 1, 2, 3, 4, 5]
    assert issubclass(module.HorovodInternalError, RuntimeError)
    assert module.gloo_built() and not module.mpi_built() and module.nccl_built() == 0


def test_before_init_the_errors_say_so():
    for module in (rueda, rueda.torch):
        assert not module.is_initialized()
        for function in (module.rank, module.size, module.local_rank, module.cross_size):
            # "Horovod", where another test has imported that.
            with pytest.raises(ValueError, match="(rueda|Horovod) has not been initialized; use hvd.init()."):
                function()
        with pytest.raises(ValueError):
            module.stop_timeline()
        with pytest.raises(module.HorovodInternalError, match="has not been initialized"):
            module.barrier()
    import numpy
    import torch

    with pytest.raises(rueda.HorovodInternalError, match="has not been initialized"):
        rueda.allgather(numpy.ones(1))
    with pytest.raises(rueda.HorovodInternalError, match="has not been initialized"):
        rueda.torch.broadcast_(torch.ones(1), 0)


def test_structs_and_numbers_are_the_headers(tmp_path):
    """A C program prints sizes, offsets and constants; ctypes must agree."""
    header = ffi.read(HEADERS / "rueda" / "rueda.h")
    structs = {
        name: getattr(_ffi, ffi.class_name(name))
        for name, fields in header.types.items()
        if isinstance(fields, list)
    }
    assert {"rueda_error", "rueda_op", "rueda_lost", "rueda_attention_spec"} <= set(structs)
    constants = [
        name
        for group in header.constants.values()
        for name, value in group.items()
        if isinstance(value, int)
    ]
    assert {"RUEDA_OK", "RUEDA_ABI_VERSION", "RUEDA_FLOAT8_E5M2", "RUEDA_JOIN"} <= set(constants)
    lines, expected = [], []
    for name, struct in structs.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(_ffi.ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(struct, field).offset)
    for constant in constants:
        lines.append(f'printf("%d\\n", (int){constant});')
        expected.append(getattr(_ffi, constant[len("RUEDA_") :]))
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <stdio.h>\n#include <rueda/rueda.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "}\n"
    )
    program = tmp_path / "sizes"
    subprocess.run(["cc", f"-I{HEADERS}", "-o", program, source], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in printed.split()] == expected


def test_a_missing_or_foreign_library_is_named(tmp_path):
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing(void) { return 0; }\n")
    foreign = tmp_path / "foreign.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", foreign, empty], check=True)
    for path, reason in ((tmp_path / "absent.so", "cannot load"), (foreign, "another version")):
        run = subprocess.run(
            [sys.executable, "-c", "import rueda"],
            env={**os.environ, "RUEDA_LIBRARY": str(path)},
            capture_output=True,
            text=True,
        )
        assert run.returncode != 0
        assert "ImportError" in run.stderr and str(path) in run.stderr and reason in run.stderr


def test_a_library_of_another_version_is_refused(tmp_path):
    source = tmp_path / "other.c"
    functions = sorted(set(_ffi.FUNCTIONS) - {"rueda_version", "rueda_abi_version"})
    source.write_text(
        'const char* rueda_version(void) { return "0.0.9"; }\n'
        f"unsigned rueda_abi_version(void) {{ return {_ffi.ABI_VERSION}; }}\n"
        + "".join(f"int {name}(void) {{ return 0; }}\n" for name in functions)
    )
    other = tmp_path / "librueda.so"
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", other, source], check=True)
    env = {**os.environ, "RUEDA_LIBRARY": str(other)}
    run = subprocess.run([sys.executable, "-c", "import rueda"], env=env, capture_output=True, text=True)
    assert run.returncode != 0
    assert f"{other} is of rueda 0.0.9, this package is {_ffi.VERSION}: reinstall rueda" in run.stderr


def test_a_job_of_one_rank_needs_no_launcher():
    program = (
        "import rueda, numpy; rueda.init(); print(rueda.size(), rueda.allreduce(numpy.ones(1)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "[1.]"], done.stderr
