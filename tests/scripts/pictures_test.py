"""docs/pictures are what scripts/draw_pictures.py draws; plots show the figures of docs/benchmarks.md; texts can be read."""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import draw_pictures  # noqa: E402
from pictures_lib.canvas import COLOURS, Picture  # noqa: E402
from pictures_lib.plots import Results, bytes_of  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
PAGE = """
<!-- bench_peers: begin -->
- date: 2026-01-02
- machine: 2 cores, Linux

**A. small**

| ranks | case | call | peer | rueda us | peer us | NEAR | FAR | mixed | all |
|---|---|---|---|---|---|---|---|---|---|
| 2 | allreduce:f32:private:4 | persistent | openmpi | 0.35 | 0.39 | - | - | - | 1.09 (1.03-1.31, n=5) |
| 4 | allreduce:f32:private:1M | persistent | gloo | 1.5 | - | not available: why |  |  |  |
<!-- bench_peers: end -->
"""


def luminance(colour):
    channels = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    channels = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(one, other):
    """As WCAG 2.1 defines it."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


class Drawn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.drawn = draw_pictures.drawn()

    def test_pictures_are_current(self):
        done = subprocess.run([str(ROOT / "scripts" / "draw_pictures.py"), "--check"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_another_figure_in_the_table_makes_its_plot_stale(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for part in ("draw_pictures.py", "pictures_lib"):
                copy = shutil.copytree if (ROOT / "scripts" / part).is_dir() else shutil.copy
                (root / "scripts").mkdir(exist_ok=True)
                copy(ROOT / "scripts" / part, root / "scripts" / part)
            shutil.copytree(ROOT / "docs" / "pictures", root / "docs" / "pictures")
            page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
            (root / "docs" / "benchmarks.md").write_text(re.sub(r"(allreduce:f32:private:4 .*\| )1\.09 \(", r"\g<1>9.09 (", page), encoding="utf-8")
            (root / "docs" / "pictures" / "nobody.svg").write_text("<svg/>")
            done = subprocess.run([sys.executable, str(root / "scripts" / "draw_pictures.py"), "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([line.split(":")[0] for line in done.stdout.splitlines()],
                         ["docs/pictures/benchmark_allreduce.svg", "docs/pictures/nobody.svg"])

    def test_texts_are_inside_of_the_picture_and_large_enough(self):
        for name, text in self.drawn.items():
            tree = ElementTree.fromstring(text)
            for part in tree.iter(f"{SVG}text"):
                size = float(part.get("font-size"))
                length = 0.56 * size * len(part.text)
                before = {"start": 0, "middle": length / 2, "end": length}[part.get("text-anchor")]
                with self.subTest(name=name, text=part.text):
                    self.assertGreaterEqual(size, 10)
                    self.assertGreaterEqual(float(part.get("x")) - before, 0)
                    self.assertLessEqual(float(part.get("x")) - before + length, float(tree.get("width")))

    def test_what_is_seen_is_also_said_and_nothing_is_loaded(self):
        for name, text in self.drawn.items():
            tree = ElementTree.fromstring(text)
            self.assertGreater(len(tree.find(f"{SVG}desc").text), 80, name)
            self.assertTrue(tree.find(f"{SVG}title").text, name)
            self.assertIn("@media (prefers-color-scheme:dark)", text)
            self.assertEqual(re.findall(r"https?://(?!www\.w3\.org/2000/svg\")|href|#[0-9a-f]{6}(?=\")", text), [], name)

    def test_colours_stand_out_in_light_and_dark(self):
        for which in (0, 1):
            ground = COLOURS["ground"][which]
            for name in ("ink", "faint"):
                self.assertGreater(contrast(COLOURS[name][which], ground), 4.5, name)
            self.assertGreater(contrast(COLOURS["ink"][which], COLOURS["plain"][which]), 4.5)
            for name in ("c0", "c1", "c2", "c3", "bad"):
                self.assertGreater(contrast(COLOURS[name][which], ground), 4, name)  # labels are of the ground's colour

    def test_characters_of_markup_are_escaped(self):
        picture = Picture(100, 50, "a < b", "c & d")
        picture.box(0, 0, 50, 50, "<x>\n&")
        texts = [part.text for part in ElementTree.fromstring(picture.svg()).iter(f"{SVG}text")]
        self.assertEqual(texts, ["<x>", "&"])


class Tables(unittest.TestCase):
    def test_rows_are_read_and_what_was_not_measured_is_left_out(self):
        results = Results("before" + PAGE + "after")
        self.assertEqual((results.date, results.machine, len(results.rows)), ("2026-01-02", "2 cores", 1))
        row = results.rows[0]
        self.assertEqual((row.letter, row.ranks, row.peer, row.rueda_us, row.peer_us, row.ratio, row.least, row.most),
                         ("A", 2, "openmpi", 0.35, 0.39, 1.09, 1.03, 1.31))
        self.assertEqual(results.of("A", "allreduce:.*"), [row])
        self.assertEqual(results.of("B", "allreduce:.*"), [])

    def test_sizes(self):
        self.assertEqual([bytes_of(case) for case in ("x:4", "x:1K", "x:64M")], [4, 1024, 64 << 20])

    def test_the_page_has_every_row_that_is_drawn(self):
        results = Results((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
        for peer in ("openmpi", "mpich", "torch-gloo"):
            self.assertGreaterEqual(sum(row.peer == peer for row in results.of("ADE", r"allreduce:f32:private:\w+")), 7)
        for kind in ("allgather", "reducescatter", "broadcast", "alltoall"):
            self.assertEqual(len({row.case for row in results.of("I", kind + ":.*")}), 8)
        self.assertEqual(len(results.of("J", "gradients:resnet50:.*")), 9)


if __name__ == "__main__":
    unittest.main()
