"""Every link of a page leads somewhere: relative ones to what is in the repository, #anchors to a heading.

Looked at are all Markdown files (README.md, CONTRIBUTING.md, docs/*.md, the README of every folder): links and pictures of
Markdown and of HTML, wrapped over lines or not, and definitions ([name]: target). What a link leads to is in the repository,
not only on this machine's disk. Addresses of other hosts are counted as links that leave, and are not tried.
"""
import re
import unittest
from pathlib import PurePosixPath

from repository import ROOT, tracked

ABROAD = re.compile(r"(?:https?|mailto):")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HTML = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
BLOCK = re.compile(r"^( *)(```+|~~~+).*?^\1\2", re.DOTALL | re.MULTILINE)


def targets(text):
    """What the links of a page lead to; what stands in code is no link."""
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))
    return sorted({target for form in (LINK, HTML, DEFINITION) for target in form.findall(text)})


def anchors(text):
    """Those of a page's headings, as GitHub makes them: a heading that is there already gets -1, -2."""
    made = {}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", BLOCK.sub("", text), re.MULTILINE):
        heading = re.sub(r"[`*]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        made[name] = made.get(name, -1) + 1
    return {name if number == 0 else f"{name}-{number}" for name, most in made.items() for number in range(most + 1)}


def resolve(page, path):
    """From the root of the repository; None outside of it."""
    parts = list(PurePosixPath(page).parent.parts)
    for part in PurePosixPath(path).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def broken(pages, paths):
    """(page, target, why) of each link that leads nowhere; pages: text by path, paths: the repository's files."""
    there = set(paths) | {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents} | {""}
    found = []
    for page, text in sorted(pages.items()):
        for target in targets(text):
            if ABROAD.match(target):
                continue
            path, _, part = target.partition("#")
            where = resolve(page, path) if path else page
            if path.startswith("/") or where is None:
                found.append((page, target, "leads out of the repository"))
            elif where not in there:
                found.append((page, target, "no such file"))
            elif part and where not in pages:
                found.append((page, target, "only pages have headings"))
            elif part and part not in anchors(pages[where]):
                found.append((page, target, f"no such heading in {where}"))
    return found


class Links(unittest.TestCase):
    def test_links_of_all_pages_lead_somewhere(self):
        paths = tracked()
        pages = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths
                 if path.endswith(".md") and not path.startswith("tests/fuzz/corpus/")}
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/design.md", "runtime/README.md"):
            self.assertIn(name, pages)
        self.assertGreater(sum(len(targets(text)) for text in pages.values()), 100)
        self.assertEqual(broken(pages, paths), [])

    def test_every_picture_is_shown_by_a_page(self):
        paths = tracked()
        shown = {resolve(path, target) for path in paths if path.endswith(".md")
                 for target in targets((ROOT / path).read_text(encoding="utf-8")) if target.endswith(".svg")}
        self.assertEqual([path for path in paths if path.endswith(".svg") and path not in shown], [])


class TheCheckItself(unittest.TestCase):
    PATHS = ("README.md", "docs/a.md", "docs/b.md", "src/x.h")

    def found(self, text, page="docs/a.md"):
        pages = {"README.md": "# Top", "docs/a.md": "", "docs/b.md": "# One two\n## Same\n## Same\n```\n# code\n```\n## `f()`, *so*: [x](a.md)"}
        return [why for _, _, why in broken({**pages, page: text}, self.PATHS)]

    def test_what_is_there_is_fine(self):
        self.assertEqual(self.found("[a](b.md) [a](../src/x.h) [a](../src/) [a](..) [a](b.md#one-two) [a](b.md#same-1) [a](b.md#f-so-x)"), [])
        self.assertEqual(self.found("# Here\n[a](#here) <https://example.org> [b](https://example.org/x#y) [c](mailto:a@example.org)"), [])
        self.assertEqual(self.found("`[a](nowhere)`\n```\n[a](nowhere)\n```\n"), [])

    def test_a_missing_file_is_found(self):
        for text in ("[a](c.md)", "![a](p.svg)", "[b](../sr/)", "[long\ntext](c.md)", '[a](c.md "title")', '<img alt="" src="p.svg">',
                     "[a]\n\n[a]: c.md\n"):
            with self.subTest(text=text):
                self.assertEqual(self.found(text), ["no such file"])

    def test_a_missing_heading_is_found(self):
        for target in ("b.md#two", "b.md#same-2", "b.md#code", "#nowhere"):
            with self.subTest(target=target):
                self.assertEqual([why[:15] for why in self.found(f"[a]({target})")], ["no such heading"])
        self.assertEqual(self.found("[a](../src/x.h#L3)"), ["only pages have headings"])

    def test_the_repository_is_not_left(self):
        self.assertEqual(self.found("[a](../../x) [b](/docs/b.md)"), ["leads out of the repository"] * 2)
        self.assertEqual(self.found("[a](../x)", page="README.md"), ["leads out of the repository"])


if __name__ == "__main__":
    unittest.main()
