"""Pages name what there is: every file, function, type, option and counter of a page exists in the sources.

Looked at are README.md, docs/*.md and the README of every folder: what stands in backquotes. What a name is follows
from its form:

    `a/b.h`, `b.h`, `a/b`        a file, a folder, or a file without its ending; from the root, the page or anywhere
    `name` in a table's first    a file of the README's folder, without its ending; or any of the below
    column of a folder's README
    `rueda_name`, `Class::name`, `CamelCase`, `snake_case`, `name()`, `--option`       words of the sources

Names of other projects stand in FOREIGN. Settings and links have tests of their own (tables_test.py, links_test.py).
"""
import os
import re
import unittest
from pathlib import PurePosixPath

from repository import ROOT, tracked

ENDINGS = {".h", ".hpp", ".cc", ".c", ".cu", ".cuh", ".py", ".md", ".proto", ".cmake", ".inc", ".svg", ".sh", ".map"}
# Of other projects.
FOREIGN = {
    "cuda.h": "CUDA", "mpi.h": "MPI", "RssShmem": "a line of /proc/PID/status", "share_memory_()": "PyTorch",
    "recompile_limit": "PyTorch", "split_group": "PyTorch", "shrink_group": "PyTorch", "--rng-seed": "Catch2",
    'DDPStrategy(process_group_backend="rueda")': "Lightning", 'deepspeed.init_distributed("rueda")': "DeepSpeed",
    'Trainer(strategy=DDPStrategy(process_group_backend="rueda"))': "Lightning", "Accelerator(cpu=True)": "Accelerate",
    "TrainingArguments(use_cpu=True)": "transformers", "ray.train.get_checkpoint()": "Ray", "runtime_env": "Ray", "ZeroRedundancyOptimizer": "PyTorch",
    "ProcessGroupWrapper": "torchft", "_create_pg(self, store, rank, world_size)": "torchft",
    # made of their parts in rueda.compat.ring_flash_attn
    "ring_flash_attn_varlen_func": "ring-flash-attention", "stripe_flash_attn_qkvpacked_func": "ring-flash-attention",
}

SPAN = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def without_blocks(text):
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


class Tree:
    def __init__(self, paths):
        self.paths = set(paths)
        for path in paths:
            self.paths.update(parent.as_posix() for parent in PurePosixPath(path).parents)
        self._tails = {}
        for path in self.paths:
            parts = path.split("/")
            for begin in range(len(parts)):
                tail = "/".join(parts[begin:])
                self._tails.setdefault(tail, set()).add(path)
                stem = re.sub(r"(?:-inl)?\.\w+$", "", tail)
                self._tails.setdefault(stem, set()).add(path)
        self.tops = {path.split("/")[0] for path in self.paths if "/" in path}

    def has(self, name):
        """Is there such a file or folder, seen from anywhere? A file may come without its ending."""
        return name.rstrip("/") in self._tails

    def has_in(self, folder, name):
        return any(path.startswith(folder + "/") for path in self._tails.get(name.rstrip("/"), ()))


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        paths = tracked()
        cls.tree = Tree(paths)
        cls.pages = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths
                     if path.endswith(".md") and not path.startswith(("third_party/", "tests/fuzz/corpus/"))}
        cls.words, cls.options, cls.members = set(), set(), {}
        for path in paths:
            # What only a comment says is no name, nor what tests of the repository plant or forbid.
            if path.endswith((".md", ".svg", ".gz")) or path.startswith(("tests/fuzz/corpus/", "tests/scripts/")):
                continue
            try:
                text = (ROOT / path).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            if path.endswith((".h", ".hpp", ".cc", ".c", ".cu", ".cuh")):
                text = re.sub(r"/\*.*?\*/", "", re.sub(r"(?m)(?:^|\s)//.*$", "", text), flags=re.DOTALL)
            words = set(WORD.findall(text))
            cls.words |= words
            cls.options |= set(re.findall(r"--?[a-z][\w-]*", text))
            for name in re.findall(r"\b(?:class|struct|enum class|enum|namespace)\s+(?:\[\[\w+\]\]\s*)?(?:\w+::)*(\w+)", text):
                cls.members.setdefault(name, set()).update(words)

    def wrong(self, page, name):
        """Why there is no such thing; None if there is, or if it is no name."""
        folder = PurePosixPath(page).parent.as_posix()
        name = name.strip().rstrip(".,:;")
        if name in FOREIGN:
            return None
        if re.fullmatch(r"--[a-z][\w-]*", name):
            return None if name in self.options else "no such option"
        if re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+/|[\w-]+\.\w+", name):
            ending = PurePosixPath(name).suffix
            if name.rstrip("/").split("/")[0] not in self.tree.tops and ending not in ENDINGS:
                return None  # "application/json", "3.9"
            here = os.path.normpath(f"{folder}/{name}")
            return None if self.tree.has(name) or self.tree.has(here) else "no such file"
        scoped = re.fullmatch(r"(?:rueda::)?(?:(\w+)::)?(\w+)::(\w+)(?:\(.*\))?", name)
        if scoped:
            _, owner, member = scoped.groups()
            if owner in self.members:
                return None if member in self.members[owner] else f"{owner} has no {member}"
            return f"no such class or namespace: {owner}" if owner not in self.words else None
        ours = re.fullmatch(r"(?:rueda|hvd)((?:\.\w+)+)(?:\(.*\))?", name)
        if ours:
            unknown = [part for part in ours.group(1).split(".")[1:] if part not in self.words and not self.tree.has(part)]
            return f"no such name: {unknown[0]}" if unknown else None
        call = re.fullmatch(r"((?:\w+\.)*)(\w+)\((.*)\)", name)
        if call:
            return None if call.group(2) in self.words else "no such function"
        if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+|_[a-z]\w*|(?:[A-Z][a-z0-9]+){2,}|k[A-Z]\w+", name):
            return None if name in self.words or self.tree.has(name) else "no such name"
        return None

    def test_names_are_those_of_the_sources(self):
        for page, text in self.pages.items():
            for name in sorted(set(SPAN.findall(without_blocks(text)))):
                with self.subTest(page=page, name=name):
                    self.assertIsNone(self.wrong(page, name))

    def test_functions_of_the_library_are_there(self):
        """Also in examples and in the middle of a line."""
        for page, text in self.pages.items():
            for name in sorted(set(re.findall(r"(?<![\w./-])rueda_[a-z0-9_]*[a-z0-9]\b(?![./*-])", text)) - set(FOREIGN)):
                with self.subTest(page=page, name=name):
                    self.assertTrue(name in self.words or self.tree.has(name), "no such name")

    def test_options_of_commands_are_there(self):
        for page, text in self.pages.items():
            for line in re.findall(r"(?:ruedarun|rueda|horovodrun|scripts/\w+) [^`\n]*", text):
                for option in re.findall(r"(?<!\S)--[a-z][\w-]*", line):
                    with self.subTest(page=page, option=option):
                        self.assertTrue(option in self.options or option in FOREIGN, "no such option")

    def test_tables_of_a_folders_files_name_its_files(self):
        for page, text in self.pages.items():
            folder = PurePosixPath(page).parent.as_posix()
            if not page.endswith("README.md") or folder in (".",):
                continue
            for line in without_blocks(text).splitlines():
                if not line.startswith("| ") or line.startswith("| |"):
                    continue
                for name in SPAN.findall(line.split("|")[1]):
                    if not re.fullmatch(r"[a-z_][\w./-]*", name):
                        continue
                    with self.subTest(page=page, name=name):
                        self.assertTrue(self.tree.has_in(folder, name) or name.startswith("../"), "not in this folder")


if __name__ == "__main__":
    unittest.main()
