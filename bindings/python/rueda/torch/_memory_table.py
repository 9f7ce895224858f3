"""A report of memory as text. Pure."""

MOST_ROWS = 32  # of ranks
UNITS = ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)


def unit_for(values):
    """(name, bytes) of the largest unit of which there is one in the largest value."""
    most = max(values, default=0)
    return [UNITS[0], *(unit for unit in UNITS if unit[1] <= most)][-1]


def table(title, columns, rows):
    """Lines: ``columns`` are headings, ``rows`` (label, bytes or None of each column)."""
    name, bytes_each = unit_for([value for _, values in rows for value in values if value])
    cells = [[f"{title}, in {name}", *columns]]
    for label, values in rows:
        cells.append([label, *("-" if v is None else f"{v / bytes_each:.1f}" for v in values)])
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns) + 1)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(row[1:], widths[1:]))])
        for row in cells
    ]
