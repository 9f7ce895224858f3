"""What every rank of a test world runs: ``rank_main.py MODULE FOLDER TEST...``; see worlds.py."""

import importlib.util
import json
import os
import pathlib
import sys
import traceback


def main(module_file, folder, *names):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    spec = importlib.util.spec_from_file_location("tests_on_ranks", module_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import rueda as hvd

    manual = bool(os.environ.get("RUEDA_TEST_MANUAL"))
    if not manual:
        hvd.init()
    rank = None if manual else hvd.rank()
    failed = False
    for name in names:
        function = getattr(module, name)
        function = getattr(function, "body", function)
        report = {"test": name}
        try:
            report["result"] = function()
            if len(names) > 1:
                hvd.barrier()  # ranks that failed are noticed here, not in the next test
        except BaseException as error:
            failed = True
            report["error"] = str(error)
            report["types"] = [cls.__name__ for cls in type(error).__mro__]
            report["trace"] = traceback.format_exc()
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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
