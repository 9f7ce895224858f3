"""What every rank of a test world runs: ``rank_main.py FOLDER MODULE.py::TEST...``; see worlds.py."""

import atexit
import gc
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import threading
import time
import traceback


def load(module_file):
    spec = importlib.util.spec_from_file_location("tests_on_ranks", module_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_module(module_file, names, folder, alone):
    """Whether all went well."""
    module = load(module_file)
    import rueda as hvd

    manual = bool(os.environ.get("RUEDA_TEST_MANUAL"))
    if not manual:
        hvd.init()
    rank = None if manual else hvd.rank()
    failed = False
    for name in names:
        function = getattr(module, name)
        function = getattr(function, "body", function)
        report = {"file": module_file, "test": name}
        begin = time.monotonic()
        try:
            report["result"] = function()
            if not alone:
                hvd.barrier()  # ranks that failed are noticed here, not in the next test
        except BaseException as error:
            failed = True
            report["error"] = str(error)
            report["types"] = [cls.__name__ for cls in type(error).__mro__]
            report["trace"] = traceback.format_exc()
        report["seconds"] = time.monotonic() - begin
        if manual:
            rank = report.get("result", {}).get("rank") if not failed else None
        if rank is not None:
            with open(pathlib.Path(folder, f"{rank}.jsonl"), "a") as lines:
                lines.write(json.dumps(report) + "\n")
        elif failed:
            sys.exit(report["trace"])
        if failed:
            break
    hvd.shutdown()
    return not failed


def main(folder, *tests):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    pairs = [test.rsplit("::", 1) for test in tests]
    in_order = not os.environ.get("RUEDA_TEST_MANUAL")
    for module_file, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        if not run_module(module_file, [name for _, name in group], folder, len(pairs) == 1):
            return 1
        gc.collect()  # what one module leaves to the collector must not be found by the next
    if in_order:  # As the interpreter ends, without the half second in which it unloads PyTorch; scripts do that in other tests.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
