"""``gloo_program.py PROGRAM [ARGUMENTS]``: runs a program on Gloo, and ends with it.

A thread of Gloo's may let go of a call's tensor after the call has returned. Where Python is ending by then, PyTorch's
wait for the GIL ends the thread inside of a destructor, and std::terminate the process ("terminate called without an
active exception", PyTorch 2.13). So Python does not end here: the process does.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
