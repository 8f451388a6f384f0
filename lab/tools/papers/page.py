"""The page: Markdown, with its charts in separate files."""

import os
import pathlib
import re

import plots


class Page:
    def __init__(self, path, pictures):
        self.path, self.pictures = pathlib.Path(path), pathlib.Path(pictures)
        self.text = ""

    def heading(self, text, level=2):
        self.text += f"{'#' * level} {text}\n\n"

    def paragraph(self, text):
        self.text += text + "\n\n"

    def table(self, head, rows):
        """The first cell of a row is a label, the others are figures."""
        def line(cells):
            escaped = [str(cell).replace("|", "\\|") for cell in cells]
            return "| " + " | ".join(escaped) + " |\n"

        self.text += line(head) + "|" + " --- |" + " ---: |" * (len(head) - 1) + "\n"
        self.text += "".join(line(row) for row in rows) + "\n"

    def picture(self, name, title, figure):
        if figure is None:
            return
        path = self.pictures / (re.sub(r"[^A-Za-z0-9.-]", "-", name) + ".svg")  # a shape may be a path
        plots.save(figure, path)
        self.text += f"![{title}]({pathlib.PurePath(os.path.relpath(path, self.path.parent)).as_posix()})\n\n"

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text)


def figure(value, scale=1):
    """A number as shown in tables: three significant digits, "-" if there is none."""
    if value is None:
        return "-"
    value *= scale
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def percent(share):
    return "-" if share is None else f"{100 * share:.1f}%"


def ratio(a, b):
    return a / b if a is not None and b is not None and b > 0 else None


def times(value):
    """A ratio, as in "2.31x"."""
    return "-" if value is None else f"{value:.2f}x"


def tokens(count):
    """8192 -> "8K", 1500 -> "1500"."""
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def place(key):
    """The coordinates of a cell: "4 x 8K", "16K (prefill)"."""
    kind, _, _, batch, context = key
    return (f"{batch} x " if kind == "decode" and batch > 1 else "") + tokens(context) + (
        " (prefill)" if kind == "prefill" else "")


def write_skipped(suite, experiment, page):
    """The cells that were not measured and the reasons, one line per reason; empty if there are none."""
    keys = suite.experiments[experiment]
    reasons = {}
    for key in keys:
        if suite.measured(key) is None:
            system = key[1] if key[2] == keys[0][2] else f"{key[1]}, {key[2]}"
            reasons.setdefault(suite.why_not(key), {}).setdefault(system, []).append(place(key))
    if reasons:
        lines = ["- " + "; ".join(f"{system} at {', '.join(places)}" for system, places in systems.items()) + ": " + reason
                 for reason, systems in reasons.items()]
        page.paragraph("Without a figure:\n\n" + "\n".join(lines))
