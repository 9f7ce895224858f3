"""What scripts/docs gives mkdocs: every page is in the navigation, links work in the site too, references are complete.

Needs neither mkdocs nor the network; site_test.py renders it.
"""
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).parent)]
import links_test  # noqa: E402
from docs_lib import headers, pages  # noqa: E402

CONFIG = (ROOT / "scripts" / "docs_lib" / "mkdocs.yml").read_text(encoding="utf-8")


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.made = pages.write(ROOT, cls.folder / "pages")
        cls.texts = {page: (cls.folder / "pages" / page).read_text(encoding="utf-8") for page in cls.made}

    def test_every_page_is_in_the_navigation_once(self):
        listed = re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", CONFIG.split("\nnav:\n")[1], re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(set(listed)))
        self.assertEqual(sorted(listed), [page for page in self.made if not page.startswith("sources/")])
        for page in (ROOT / "docs").glob("*.md"):
            self.assertIn(f"docs/{page.name}", listed)

    def test_every_page_of_the_repository_is_there(self):
        other = ("third_party/", "tests/fuzz/corpus/")
        tracked = [path for path in links_test.tracked() if path.endswith(".md") and not path.startswith(other)]
        self.assertEqual([path for path in tracked if path not in self.made], [])

    def test_links_lead_to_what_the_site_has(self):
        files = [path.relative_to(self.folder / "pages").as_posix() for path in (self.folder / "pages").rglob("*") if path.is_file()]
        self.assertEqual(links_test.broken(self.texts, files), [])
        # A folder is nothing that a browser can show.
        for page, text in self.texts.items():
            for target in links_test.targets(text):
                self.assertFalse(target.endswith("/") and not links_test.ABROAD.match(target), f"{page}: {target}")

    def test_links_to_other_files_show_them(self):
        text = pages.for_the_site(ROOT, "docs/x.md", "a [`train`](../examples/train_digits.py) `[b](../LICENSE)`\n- [c](../runtime/) [d](../tests)\n",
                                  sources := set())
        self.assertEqual(text, "a [`train`](../sources/examples/train_digits.py.md) `[b](../LICENSE)`\n\n- [c](../runtime/README.md) d\n")
        self.assertEqual(sources, {"examples/train_digits.py"})

    def test_modules_of_the_references_are_there(self):
        for module in (module for modules in pages.PYTHON.values() for module in modules):
            path = ROOT / "bindings" / "python" / module.replace(".", "/")
            self.assertTrue(path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module)


class Headers(unittest.TestCase):
    def test_every_function_of_c_has_its_place_and_its_text(self):
        page = headers.c_page(ROOT)
        header = (ROOT / "bindings/c/include/rueda/rueda.h").read_text(encoding="utf-8")
        functions = re.findall(r"^RUEDA_API [^;]*?\b(rueda_\w+)\(", header, re.MULTILINE)
        self.assertGreater(len(functions), 50)
        titles = "\n".join(re.findall(r"^### .*", page, re.MULTILINE))
        self.assertEqual([name for name in functions if f"`{name}`" not in titles], [])
        for struct in re.findall(r"^\} (\w+);", header, re.MULTILINE):
            self.assertIn(f"`{struct}`", titles)
        self.assertIn("### `rueda_request_test`\n\n1 when it has ended (well or not) or was never started, else 0. Never blocks.\n\n```c\nRUEDA_API int32_t", page)
        self.assertIn("## Process sets: groups of ranks", page)
        self.assertNotIn("clang-format", page)

    def test_classes_of_cpp_are_shown_without_bodies_and_private_members(self):
        page = headers.cpp_page(ROOT)
        titles = re.findall(r"^### .*", page, re.MULTILINE)
        for name in ("Context", "Request", "Buffer", "Error", "Options", "ReduceOp", "BFloat16", "Spec", "Plan", "forward", "backward"):
            self.assertIn(f"### `{name}`", titles)
        self.assertIn("  int local_rank() const;  // among the ranks of this host\n", page)
        self.assertIn("  template <InOut R>\n  void allreduce(R&& data, ReduceOp op, const Options& options = {});\n", page)
        for hidden in ("handle_", "private:", "return ", '#include "', "detail::", "#ifndef"):
            self.assertNotIn(hidden, page)

    def test_text_keeps_what_is_aligned_and_shows_every_character(self):
        text = headers.text_of(["// Moves T<x> *p, `T<x> *`.", "//", "//   f(x);", "//", "// Threads:   one", "//            at a time", "// The end."])
        self.assertEqual(text, "Moves T&lt;x> \\*p, `T<x> *`.\n\n```text\n  f(x);\n\nThreads:   one\n           at a time\n```\n\nThe end.")


if __name__ == "__main__":
    unittest.main()
