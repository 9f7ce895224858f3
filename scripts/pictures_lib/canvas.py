"""A picture as SVG: boxes, texts, arrows. Its colours follow the reader's system, light or dark, on a ground of their own."""
import math
from html import escape

# name: (light, dark). c0 to c3 differ also for who sees red and green alike: after Okabe and Ito (2008), darker where
# they carry white text.
COLOURS = {
    "ground": ("#ffffff", "#1c2128"), "ink": ("#1f2328", "#e6edf3"), "faint": ("#656d76", "#9aa4ae"), "plain": ("#eaeef2", "#2d333b"),
    "c0": ("#0072b2", "#58a6d8"), "c1": ("#b96a00", "#f0b040"), "c2": ("#00835f", "#3fbf94"), "c3": ("#b65a8e", "#dd93bd"),
    "bad": ("#c43e00", "#ff7b4a"),
}


def style(which):
    rules = []
    for name, colours in COLOURS.items():
        colour = colours[which]
        rules.append(f".f-{name}{{fill:{colour}}}.s-{name}{{stroke:{colour}}}")
    return "".join(rules)


class Picture:
    def __init__(self, width, height, title, text):
        """text: what the picture says, for who does not see it."""
        self.width, self.height = width, height
        self.parts = [f"<title>{escape(title)}</title>", f"<desc>{escape(text)}</desc>",
                      f"<style>{style(0)}@media (prefers-color-scheme:dark){{{style(1)}}}</style>",
                      f'<rect class="f-ground" width="{width}" height="{height}" rx="8"/>']

    def text(self, x, y, text, colour="ink", anchor="start", size=12, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text class="f-{colour}" x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{weight}>{escape(text)}</text>')

    def box(self, x, y, width, height, label="", fill="plain", stroke=None, ink=None, size=12, dashed=False):
        outline = f' class="f-{fill} s-{stroke}"' if stroke else f' class="f-{fill}"'
        outline += ' stroke-width="1.5"' if stroke else ""
        outline += ' stroke-dasharray="5 4"' if dashed else ""
        outline += ' fill-opacity="0"' if fill == "ground" and stroke else ""
        self.parts.append(f'<rect{outline} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>')
        lines = label.split("\n") if label else []
        for number, line in enumerate(lines):
            y_line = y + height / 2 + size * 0.35 + (number - (len(lines) - 1) / 2) * size * 1.3
            self.text(x + width / 2, y_line, line, ink or ("ink" if fill in ("plain", "ground") else "ground"), "middle", size)

    def line(self, x1, y1, x2, y2, colour="faint", width=1.5, dashed=False):
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<path class="s-{colour}" stroke-width="{width:g}"{dashes} fill="none" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>')

    def arrow(self, x1, y1, x2, y2, colour="faint", dashed=False):
        angle = math.atan2(y2 - y1, x2 - x1)
        back = (x2 - 6 * math.cos(angle), y2 - 6 * math.sin(angle))
        self.line(x1, y1, round(back[0], 1), round(back[1], 1), colour, dashed=dashed)
        wings = [(x2 - 8 * math.cos(angle + side), y2 - 8 * math.sin(angle + side)) for side in (0.45, -0.45)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x2, y2), *wings])
        self.parts.append(f'<polygon class="f-{colour}" points="{points}"/>')

    def dot(self, x, y, colour, radius=3):
        self.parts.append(f'<circle class="f-{colour}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def svg(self):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return f'{head} font-family="sans-serif" role="img">\n' + "\n".join(self.parts) + "\n</svg>\n"
