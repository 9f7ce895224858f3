"""scripts/abi: what an older program cannot see is let pass, all else is named."""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from repository import ROOT

ABI = ROOT / "scripts/abi"
HEADER = ROOT / "bindings/c/include/rueda/rueda.h"

PASS = {
    "a new function": (r"(RUEDA_API const char\* rueda_version)", r"RUEDA_API int32_t rueda_new(void);\n\1"),
    "a new enumerator": (r"RUEDA_UNKNOWN = 2,", "RUEDA_UNKNOWN = 2, rueda_more = 77,"),
    "fields at the end": (r"\} rueda_op;", "int64_t more, less; } rueda_op;"),
}
FAIL = {
    "a function gone": (r"RUEDA_API const char\* rueda_version\(void\);", "", "rueda_version"),
    "another parameter": (r"rueda_code_name\(int32_t", "rueda_code_name(int64_t", "rueda_code_name"),
    "another number": (r"RUEDA_UNKNOWN = 2,", "RUEDA_UNKNOWN = 22,", "from value '2' to '22'"),
    "an enumerator gone": (r"RUEDA_UNKNOWN = 2,", "", "RUEDA_UNKNOWN"),
    "another type": (r"double prescale;", "float prescale;", "from 'double' to 'float'"),
    "fields change places": (r"int32_t kind;(.*?)int32_t dtype;", r"int32_t dtype;\1int32_t kind;", "in the place of kind there is dtype"),
    "a field in the middle": (r"void\* stream;", "int64_t more; void* stream;", "in the place of stream there is more"),
    "a field in padding": (r"\} rueda_error;", "int32_t more; } rueda_error;", "rueda_error.more lies in padding"),
    "an array's element grows": (r"\} rueda_attention_head;", "void* more; } rueda_attention_head;", "type size changed"),
}


def compared(folder, change, to):
    changed, count = re.subn(change, to, HEADER.read_text(), count=1, flags=re.DOTALL)
    assert count == 1, change
    header = Path(folder) / "rueda.h"
    header.write_text(changed)
    done = subprocess.run([sys.executable, ABI, header, HEADER], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Abi(unittest.TestCase):
    def test_it_is_what_was_promised(self):
        done = subprocess.run([sys.executable, ABI], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_additions_pass(self):
        for what, change in PASS.items():
            with self.subTest(what), tempfile.TemporaryDirectory() as folder:
                code, said = compared(folder, *change)
                self.assertEqual(code, 0, said)

    def test_what_breaks_programs_is_named(self):
        for what, (change, to, text) in FAIL.items():
            with self.subTest(what), tempfile.TemporaryDirectory() as folder:
                code, said = compared(folder, change, to)
                self.assertEqual(code, 1, said)
                self.assertIn(text, said)

    def test_the_next_abi_needs_a_record(self):
        with tempfile.TemporaryDirectory() as folder:
            code, said = compared(folder, r"RUEDA_ABI_VERSION 2", "RUEDA_ABI_VERSION 3")
            self.assertEqual(code, 1)
            self.assertIn("need not agree", said)
            done = subprocess.run([sys.executable, ABI, Path(folder) / "rueda.h"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("ABI 3 has no record", done.stderr)


if __name__ == "__main__":
    if shutil.which("abidiff") is None:
        print("abidiff (Debian: abigail-tools) is not here")
        sys.exit(77)
    unittest.main()
