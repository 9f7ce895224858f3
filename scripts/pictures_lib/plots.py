"""Plots of the last benchmark, from the tables that scripts/bench_peers writes into docs/benchmarks.md."""
import math
import re
from dataclasses import dataclass

from pictures_lib.canvas import Picture

NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "torch-gloo": "Gloo (torch.distributed)", "gloo": "Gloo", "ddp-gloo": "DDP with Gloo",
         "horovod-gloo-gradients": "Horovod with Gloo", "horovod-mpi-gradients": "Horovod with Open MPI"}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass
class Row:
    """One line of a table: peer's time / rueda's time, median, least and most of the rounds."""
    letter: str
    ranks: int
    case: str
    peer: str
    rueda_us: float
    peer_us: float
    ratio: float
    least: float
    most: float


class Results:
    def __init__(self, page):
        part = page.split("<!-- bench_peers: begin -->")[1].split("<!-- bench_peers: end -->")[0]
        self.rows, letter = [], ""
        self.date = max(re.findall(r"^- date: (\S+)", part, re.MULTILINE))
        self.machine = re.search(r"^- machine: ([^,\n]+)", part, re.MULTILINE)[1]
        for line in part.splitlines():
            if title := re.match(r"\*\*([A-Z])\. ", line):
                letter = title[1]
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            if len(cells) == 10 and (ratio := re.match(r"([\d.]+) \(([\d.]+)-([\d.]+), n=\d+\)$", cells[9])):
                self.rows.append(Row(letter, int(cells[0]), cells[1], cells[3], float(cells[4]), float(cells[5]), *map(float, ratio.groups())))

    def of(self, letters, case, ranks=2):
        return [row for row in self.rows if row.letter in letters and row.ranks == ranks and re.fullmatch(case, row.case)]


def bytes_of(case):
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", case.split(":")[-1]).groups()
    return int(number) * UNITS[unit]


class Scale:
    """A logarithmic axis of ratios; 1 is a line across."""
    def __init__(self, picture, left, right, top, bottom, least, most):
        self.top, self.bottom, self.least, self.most = top, bottom, least, most
        for value in (0.5, 1, 2, 5, 10, 20, 50, 100):
            if least <= value <= most:
                y = self.y(value)
                picture.line(left, y, right, y, "ink" if value == 1 else "plain", 1.5 if value == 1 else 1)
                picture.text(left - 6, y + 4, f"{value:g}x", "ink" if value == 1 else "faint", "end", 11)
        picture.text(right, 48, "below 1x rueda is slower", "faint", "end", 11)

    def y(self, value):
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return round(self.bottom - share * (self.bottom - self.top), 1)


def legend(picture, x, y, entries):
    for colour, name in entries:
        picture.dot(x + 4, y - 4, colour, 4)
        picture.text(x + 13, y, name, size=11)
        x += 28 + 6.2 * len(name)


def note(picture, results, text):
    picture.text(20, picture.height - 12, f"{text} Medians and ranges of the rounds; {results.date}, {results.machine}.", "faint", size=10)


def allreduce(results):
    """Row A, D, E: private memory, float32, by size."""
    picture = Picture(760, 340, "allreduce: how many times rueda's time the peers take",
                      "Peer's time divided by rueda's, allreduce of float32 in private memory on two ranks, from 4 bytes to 256 MB; the "
                      "figures are in docs/benchmarks.md.")
    picture.text(20, 26, "allreduce on two ranks of one host: peer's time / rueda's time", bold=True, size=13)
    rows = results.of("ADE", r"allreduce:f32:private:\w+")
    sizes = sorted({row.case.split(":")[-1] for row in rows}, key=bytes_of)
    scale = Scale(picture, 56, 740, 66, 280, 0.5, 50)
    series = [("c0", "openmpi"), ("c1", "mpich"), ("c2", "torch-gloo")]
    legend(picture, 56, 48, [(colour, NAMES[peer]) for colour, peer in series])
    for number, (colour, peer) in enumerate(series):
        before = None
        for place, size in enumerate(sizes):
            for row in (row for row in rows if row.peer == peer and row.case.endswith(f":{size}")):
                x = 84 + place * 640 / (len(sizes) - 1) + (number - 1) * 4
                picture.line(x, scale.y(row.least), x, scale.y(min(row.most, 50)), colour, 1)
                picture.dot(x, scale.y(row.ratio), colour, 3.5)
                if before:
                    picture.line(*before, x, scale.y(row.ratio), colour)
                before = (x, scale.y(row.ratio))
    for place, size in enumerate(sizes):
        picture.text(84 + place * 640 / (len(sizes) - 1), 298, size if size[-1:] in "KMG" else f"{size} B", "ink", "middle", 11)
    note(picture, results, "float32, private memory.")
    return picture


def collectives(results):
    """Row I: from private memory and from shared memory, against the better MPI."""
    kinds = ("allgather", "reducescatter", "broadcast", "alltoall")
    picture = Picture(760, 320, "Other collectives: how many times rueda's time the better MPI takes",
                      "Peer's time divided by rueda's for allgather, reducescatter, broadcast and alltoall of 1 to 64 MB on two ranks; the "
                      "figures are in docs/benchmarks.md.")
    picture.text(20, 26, "other collectives on two ranks: the better MPI's time / rueda's time", bold=True, size=13)
    legend(picture, 56, 48, [("c0", "private memory"), ("c1", "memory that ranks share (arena)")])
    scale = Scale(picture, 56, 740, 66, 250, 0.5, 5)
    for group, kind in enumerate(kinds):
        left = 76 + group * 168
        for place, size in enumerate(("1M", "4M", "16M", "64M")):
            for number, memory in enumerate(("private", "arena")):
                rows = [row for row in results.of("I", f"{kind}:f32:{memory}:{size}") if row.peer in ("openmpi", "mpich")]
                best = min(rows, key=lambda row: row.ratio)
                x, y = left + place * 36 + number * 13, scale.y(best.ratio)
                picture.box(x, min(y, scale.y(1)), 12, abs(scale.y(1) - y), "", f"c{number}")
                picture.line(x + 6, scale.y(max(best.least, 0.5)), x + 6, scale.y(min(best.most, 5)), "ink", 1)
            picture.text(left + place * 36 + 12, 266, size, "faint", "middle", 10)
        picture.text(left + 66, 284, kind, "ink", "middle")
    note(picture, results, "float32.")
    return picture


def gradients(results):
    """Row J: what communication adds to a step, in milliseconds."""
    picture = Picture(760, 300, "What communication adds to a step of ResNet-50's gradients",
                      "Exposed time in milliseconds of rueda, DDP with Gloo, Horovod with Gloo and Horovod with Open MPI, for a backward of 0, "
                      "50 and 200 milliseconds; the figures are in docs/benchmarks.md.")
    picture.text(20, 26, "ResNet-50's 161 gradients, two ranks: what communication adds to a step", bold=True, size=13)
    peers = ["ddp-gloo", "horovod-gloo-gradients", "horovod-mpi-gradients"]
    legend(picture, 56, 48, [("c0", "rueda"), *zip(("c1", "c2", "c3"), (NAMES[peer] for peer in peers))])
    for value in (0, 50, 100):
        y = 240 - value * 1.28
        picture.line(56, y, 740, y, "plain", 1)
        picture.text(50, y + 4, f"{value} ms", "faint", "end", 11)
    for place, backward in enumerate(("0ms", "50ms", "200ms")):
        rows = results.of("J", f"gradients:resnet50:{backward}")
        times = [rows[0].rueda_us, *(row.peer_us for peer in peers for row in rows if row.peer == peer)]
        for number, time in enumerate(times):
            x, height = 92 + place * 226 + number * 44, time / 1000 * 1.28
            picture.box(x, 240 - height, 38, height, "", f"c{number}")
            picture.text(x + 19, 235 - height, f"{time / 1000:.0f}", "ink", "middle", 11)
        picture.text(92 + place * 226 + 85, 260, f"backward takes {backward[:-2]} ms", "ink", "middle")
    picture.text(20, 288, f"Medians of the rounds; {results.date}, {results.machine}. Less is better.", "faint", size=10)
    return picture


PLOTS = {"benchmark_allreduce": allreduce, "benchmark_collectives": collectives, "benchmark_gradients": gradients}
