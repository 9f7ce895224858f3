#!/usr/bin/env python3
"""Draws docs/pictures: what pages explain (scripts/pictures_lib/ideas.py), and the last benchmark (plots.py).

    scripts/draw_pictures.py            writes them
    scripts/draw_pictures.py --check    fails when one of them is not what would be written; a ctest test
"""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from pictures_lib import ideas, plots  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def drawn():
    """Text by file name."""
    pictures = {**ideas.PICTURES, **plots.PLOTS}
    results = plots.Results((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    return {f"{name}.svg": (draw(results) if name in plots.PLOTS else draw()).svg() for name, draw in pictures.items()}


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    folder, wrong = ROOT / "docs" / "pictures", []
    folder.mkdir(exist_ok=True)
    made = drawn()
    for name, text in made.items():
        file = folder / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments:
            wrong.append(f"docs/pictures/{name}: is not what scripts/draw_pictures.py draws; run it")
        else:
            file.write_text(text, encoding="utf-8")
    wrong += [f"docs/pictures/{file.name}: drawn by nothing" for file in sorted(folder.iterdir()) if file.name not in made]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
