"""The page's charts."""

import math
import statistics

from plots import COLOURS, pyplot

DASHES = ("-", (0, (6, 3)), (0, (1.5, 2)), (0, (6, 2, 1.5, 2)), (0, (10, 3)))
CUT_AT = 4  # medians: a bar much longer than the others would make them invisible


def looks(names):
    """A colour for each system and a dash pattern for each of its forms ("litecache", "litecache, no prefetch")."""
    forms, result = {}, []
    for name in names:
        system = name.split(",")[0]
        forms[system] = forms.get(system, -1) + 1
        result.append((COLOURS[list(forms).index(system) % len(COLOURS)], DASHES[forms[system] % len(DASHES)]))
    return result


def lines(title, x_name, y_name, ticks, curves):
    """curves: {name: [(x, y), ...]}; ticks: x of the labels below the axis. Returns None if there are no points."""
    if not any(curves.values()):
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for (name, points), (colour, dashes) in zip(curves.items(), looks(curves)):
        if points:
            axes.plot(*zip(*points), label=name, color=colour, linestyle=dashes, marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    axes.set(title=title, xlabel=x_name, ylabel=y_name)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, borderaxespad=0, handlelength=3.5)
    return figure


def bars(title, x_name, parts, rows):
    """rows: {name: [a value per part]}, one bar each with stacked parts. Returns None if all values are 0."""
    sums = {name: math.fsum(values) for name, values in rows.items()}
    if not any(value > 0 for value in sums.values()):
        return None
    longest = max(sums.values())
    most = min(longest, CUT_AT * statistics.median(sums.values()) or longest)
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.32 * max(len(rows), 0.6 * len(parts))))
    left = dict.fromkeys(rows, 0.0)
    for p, part in enumerate(parts):
        widths = [min(values[p], most - left[name]) for name, values in rows.items()]
        axes.barh(list(rows), widths, left=list(left.values()), height=0.7, color=COLOURS[p % len(COLOURS)], label=part)
        left = {name: left[name] + width for name, width in zip(rows, widths)}
    for i, (name, value) in enumerate(sums.items()):
        axes.text(left[name] + most / 100, i, f"{value:.4g}", va="center", fontsize=8)
        if value > most:  # cut
            axes.plot([most * 0.965, most * 0.975], [i + 0.42, i - 0.42], color="white", linewidth=3)
    axes.invert_yaxis()
    axes.grid(False)
    axes.set(title=title, xlabel=x_name, xlim=(0, most * 1.1))
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, borderaxespad=0)
    return figure
