"""scripts/docs makes a site: without network, with every page, with search, and nothing in it asks another host.

Skipped (77) where build/docs-venv is not there: scripts/docs makes it, once, and needs the network for that.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import links_test  # noqa: E402

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "docs-venv" / "bin" / "python"
# What a page loads, unlike what a reader may follow (<a>).
LOADED = re.compile(r"<(?!a\b)\w+\b[^>]*?\b(?:src|href|data|action)=[\"']?(?:https?:)?//[^\"'>]*|\burl\([\"']?(?:https?:)?//[^)]*|@import[^;]*//[^;]*")


def docs(*arguments):
    nowhere = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
    return subprocess.run([str(ROOT / "scripts" / "docs"), *arguments], capture_output=True, text=True, check=False, env={**os.environ, **nowhere})


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.site = Path(folder.name) / "a site"
        done = docs("--python", str(PYTHON), "--out", str(cls.site))
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.said = done.stdout + done.stderr

    def test_every_page_is_rendered(self):
        self.assertIn("index.html", self.said)
        names = {page.relative_to(self.site).as_posix() for page in self.site.rglob("*.html")}
        for page in (ROOT / "docs").glob("*.md"):
            self.assertIn(f"docs/{page.stem}.html", names)
        for name in ("index.html", "runtime/index.html", "CHANGELOG.html", "reference/c.html", "sources/LICENSE.html"):
            self.assertIn(name, names)

    def test_docstrings_and_headers_can_be_searched(self):
        index = json.loads((self.site / "search" / "search_index.json").read_text(encoding="utf-8"))
        places = {entry["location"] for entry in index["docs"]}
        for place in ("reference/python.html#rueda.numpy.allreduce", "reference/pytorch.html#rueda.torch.optimizer.DistributedOptimizer",
                      "reference/attention.html#rueda.attention.ring_attention", "reference/c.html#rueda_start", "reference/cpp.html#context",
                      "docs/design.html#the-steady-step-file-by-file"):
            self.assertIn(place, places)

    def test_parameters_of_docstrings_are_tables(self):
        page = (self.site / "reference" / "python.html").read_text(encoding="utf-8")
        self.assertIn("prescale_factor", page)
        self.assertNotIn("----------", page)  # a section of a docstring that was not understood

    def test_pictures_are_there(self):
        for picture in (ROOT / "docs").rglob("*.svg"):
            self.assertTrue((self.site / picture.relative_to(ROOT)).exists(), picture)

    def test_no_other_host_is_asked(self):
        for file in self.site.rglob("*"):
            if file.suffix not in (".html", ".css", ".js", ".svg"):
                continue
            text = file.read_text(encoding="utf-8")
            # Styles name the vocabulary of SVG in pictures that they carry.
            found = [tag for tag in LOADED.findall(text) if "data:image" not in tag]
            self.assertEqual(found, [], file)
            self.assertNotRegex(text, r"unpkg|jsdelivr|cdnjs|googleapis|gstatic|google-analytics", file)

    def test_a_link_to_nowhere_and_a_page_outside_of_the_navigation_are_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "a clone"
            for path in links_test.tracked():
                if path.endswith(".md") or path.startswith(("bindings/", "scripts/", "docs/")) or path in ("LICENSE", "THIRD_PARTY") \
                        or path.startswith(("examples/train_long", "examples/train_elastic")):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / path, root / path)
            with open(root / "docs" / "memory.md", "a", encoding="utf-8") as page:
                page.write("\n[a](hangs.md#nowhere)\n[b](none.md)\n")
            (root / "docs" / "lost.md").write_text("# Lost\n", encoding="utf-8")
            done = subprocess.run([str(root / "scripts" / "docs"), "--python", str(PYTHON)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        for why in ("'docs/hangs.md' does not contain an anchor '#nowhere'", "'none.md'", "docs/lost.md"):
            self.assertIn(why, done.stderr)

    def test_a_folder_with_something_else_is_not_emptied(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine").write_text("kept")
            done = docs("--python", str(PYTHON), "--out", folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn("name another folder", done.stderr)
            self.assertEqual(os.listdir(folder), ["mine"])


if __name__ == "__main__":
    if not PYTHON.exists():
        print("scripts/docs has not run: no build/docs-venv")
        sys.exit(77)
    unittest.main()
