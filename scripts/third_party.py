#!/usr/bin/env python3
"""THIRD_PARTY: version and licence of everything that is linked into rueda's library and programs.

    scripts/third_party.py                  writes THIRD_PARTY from this system's packages (Debian)
    scripts/third_party.py --check BUILD    what BUILD links is in THIRD_PARTY, in the version that is installed but for
                                            corrections, and nothing is there that is not linked; exit status 1 otherwise
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "THIRD_PARTY"
LINKED = ["lib/librueda.so.2", "bin/ruedarun", "bin/rueda"]

# name: (licence, Debian package, archives as a pattern; None: headers only, compiled in)
PARTS = {
    "abseil": ("Apache-2.0", "libabsl-dev", r"absl_\w+"),
    "c-ares": ("MIT", "libc-ares-dev", r"cares"),
    "CLI11": ("BSD-3-Clause", "libcli11-dev", None),
    "fmt": ("MIT with an exception for object code", "libfmt-dev", None),
    "gRPC with upb": ("Apache-2.0; upb BSD-3-Clause", "libgrpc-dev", r"grpc|grpc\+\+|gpr|upb|address_sorting"),
    "Highway": ("Apache-2.0", "libhwy-dev", None),
    "libsodium": ("ISC", "libsodium-dev", r"sodium"),
    "ncurses": ("MIT-X11", "libncurses-dev", r"ncursesw|tinfo"),
    "OpenSSL": ("Apache-2.0", "libssl-dev", r"ssl|crypto"),
    "Protocol Buffers": ("BSD-3-Clause", "libprotobuf-dev", r"protobuf"),
    "protozero": ("BSD-2-Clause", "libprotozero-dev", None),
    "RE2": ("BSD-3-Clause", "libre2-dev", r"re2"),
    "spdlog": ("MIT", "libspdlog-dev", None),
    "xxHash": ("BSD-2-Clause", "libxxhash-dev", None),
    "yaml-cpp": ("MIT", "libyaml-cpp-dev", r"yaml-cpp"),
    "zlib": ("Zlib", "zlib1g-dev", r"z"),
}
OF_THE_SYSTEM = {"dl", "m", "c", "pthread", "rt"}
BEGIN = """\
What is linked into rueda, or compiled into it from headers
===========================================================

Written by scripts/third_party.py; a test compares it with the link lines. rueda's own licence is in LICENSE, which is
also the text of every "Apache-2.0" below.

libstdc++ of GCC is linked statically. It is under the GNU General Public License, version 3, with the GCC Runtime
Library Exception, version 3.1, which permits to convey compiled programs that contain it under terms of one's choice.
librueda_cuda.so, where it was built, contains NVIDIA's CUDA run time (libcudart_static.a), which the CUDA Toolkit's End
User License Agreement lists among the files that may be redistributed with an application.
librueda_xla.so is compiled with a C header of XLA, bindings/xla/vendor/xla_ffi_c_api.inc, Copyright 2023 The OpenXLA
Authors, Apache-2.0.

"""


def installed_version(package):
    """Upstream's version of an installed Debian package, without epoch, revision and suffixes; None: not there."""
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    if asked.returncode != 0:
        return None
    return re.sub(r"(^\d+:)|([-+].*$)|(\.dfsg.*$)", "", asked.stdout)


def series(version):
    """Without what corrections change: 3.0 of 3.0.19."""
    return ".".join(version.split(".")[:2])


def table():
    rows = [("", "version", "licence", "linked as")]
    for name, (licence, package, archives) in sorted(PARTS.items(), key=lambda part: part[0].lower()):
        rows.append((name, installed_version(package) or "?", licence, "archive" if archives else "headers"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0])).rstrip() + "\n" for row in rows)


def page():
    text = BEGIN + table()
    for name, (_, package, _) in sorted(PARTS.items(), key=lambda part: part[0].lower()):
        words = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8").rstrip()
        text += f"\n\n{name}\n{'=' * len(name)}\n\n{words}\n"
    return text


def linked_archives(build):
    """Names of the archives that the product links and that are not of this build."""
    found = set()
    for target in LINKED:
        lines = subprocess.run(["ninja", "-C", str(build), "-t", "commands", target], capture_output=True, text=True, check=True)
        link = lines.stdout.strip().splitlines()[-1]
        found |= set(re.findall(r"(?<= )-l([\w.+-]+)", link))
        found |= set(re.findall(r" /\S*/lib([\w.+-]+)\.(?:a|so)\b", link))
    return found - OF_THE_SYSTEM


def problems(build):
    archives = linked_archives(build)
    known = re.compile("|".join(f"(?:{part[2]})" for part in PARTS.values() if part[2]))
    for archive in sorted(archives):
        if not known.fullmatch(archive):
            yield f"{archive} is linked and not in THIRD_PARTY: give it a line in scripts/third_party.py"
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        rows.setdefault(line.split("  ")[0], line)
    for name, (_, package, pattern) in PARTS.items():
        if pattern and not any(re.fullmatch(pattern, archive) for archive in archives):
            yield f"{name} is in THIRD_PARTY and not linked any more"
        version = installed_version(package)
        if name not in rows:
            yield f"{name} is not in THIRD_PARTY: run scripts/third_party.py"
        elif version and not re.search(rf" {re.escape(series(version))}\b", rows[name]):
            yield f"{name}: {version} is linked, THIRD_PARTY has another version: run scripts/third_party.py"


def main(arguments):
    if arguments[:1] == ["--check"] and len(arguments) == 2:
        found = list(problems(arguments[1]))
        print("\n".join(found) or "THIRD_PARTY is complete")
        return 1 if found else 0
    if arguments:
        print(__doc__)
        return 2
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
