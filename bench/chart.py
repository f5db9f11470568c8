"""Bars and lines as SVG."""

import math
from html import escape

COLOURS = ("#2563eb", "#9ca3af")  # the first line, which is ours, and what is beside it
WIDTH, LABEL, LINE = 720, 190, 22
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 350, 190, 46


def text(x, y, words, **attributes):
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(words)}</text>'


def rounded(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Chart:
    def __init__(self):
        self.parts, self.y, self.panels = [], 8, 0

    def bars(self, title, rows):
        """rows: (label, value, note)."""
        self.parts.append(text(4, self.y + 15, title, font_weight="bold"))
        self.y += LINE + 4
        most = max((value for _, value, _ in rows), default=1)
        for label, value, note in rows:
            length = (WIDTH - LABEL - 230) * value / most
            self.parts += [
                text(LABEL - 8, self.y + 15, label, text_anchor="end"),
                f'<rect x="{LABEL}" y="{self.y + 3}" width="{length:.1f}" height="15" '
                f'fill="{COLOURS[0]}"/>',
                text(LABEL + length + 6, self.y + 15, f"{value:.1f}  {note}")]
            self.y += LINE
        self.y += LINE // 2

    def panel(self, title, axis, lines):
        """lines: {name: [(x, y), ...]}, on logarithmic axes; two panels stand side by side."""
        left, top = 4 + (self.panels % 2) * (PANEL_WIDTH + 12), self.y
        points = [point for line in lines.values() for point in line]
        low, high = [[f(point[i] for point in points) for i in (0, 1)] for f in (min, max)]

        def at(point):
            share = [math.log(point[i] / low[i]) / (math.log(high[i] / low[i]) or 1) for i in (0, 1)]
            return (left + MARGIN + share[0] * (PANEL_WIDTH - MARGIN - 110),
                    top + PANEL_HEIGHT - 40 - share[1] * (PANEL_HEIGHT - 80))

        self.parts.append(text(left, top + 15, f"{title}, by {axis}", font_weight="bold"))
        for (name, line), colour in zip(lines.items(), COLOURS):
            places = [at(point) for point in line]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                              'stroke-width="2"/>')
            for (x, y), (_, value) in zip(places, line):
                self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>',
                               text(x, y - 7, rounded(value), text_anchor="middle",
                                    font_size=11)]
            self.parts.append(text(places[-1][0] + 14, places[-1][1] + 4, name, font_size=11))
        for value in sorted({x for x, _ in points}):
            self.parts.append(text(at((value, low[1]))[0], top + PANEL_HEIGHT - 12, f"{value}",
                                   text_anchor="middle", font_size=11))
        self.panels += 1
        if self.panels % 2 == 0:
            self.y += PANEL_HEIGHT + 10

    def svg(self):
        height = self.y + (PANEL_HEIGHT if self.panels % 2 else 0) + 6
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" '
                'fill="white"/>' + "\n".join(self.parts) + "</svg>\n")
