#!/usr/bin/env python3
"""Writes the page of the papers' evaluation from the results of `litecache-lab papers`.

Needs tools/requirements.txt. The directory contains suite.json, machine.json, cells/ and optionally notes.md with
comments on the results, which becomes part of the page.
"""

import argparse
import collections
import datetime
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "lab" / "tools" / "papers")]

import experiments  # noqa: E402
from page import Page  # noqa: E402
from suite import Suite  # noqa: E402


def where(suite):
    if suite.machine is None:
        return "nothing"
    return "; ".join(filter(None, (suite.machine["machine"], suite.machine.get("rates"))))


def sources(suite, today):
    """What was measured, where, and with which program."""
    cells = suite.all_cells()
    measured = [result for key in cells if (result := suite.measured(key)) is not None]
    programs = sorted(collections.Counter(result.get("program", "another version") for result in measured).items())
    counted = "; ".join(f"{program}: {count} measurements" for program, count in programs) or "nothing measured"
    return (f"Measured on {where(suite)}, page of {today}. {counted}. {len(measured)} of {len(cells)} measurements are there, the "
            "others say why not. Random weights of the shapes named; rows of the context are synthetic. Published figures are of "
            "the LiteCache paper (arXiv 2511.14510v2) and of its first version, CLO, on their machines (H100, A40; PCIe 4.0).")


def forced(suite):
    """What replaces lookups and selections on random weights."""
    trace = suite.description["trace"]
    if trace is None:
        return ("Forced on policy litecache, where a table does not say otherwise, because queries of random weights are like no "
                f"others: {suite.forced} of a refreshed head's rows.")
    return (f"Queries of random weights are like no others. Lookups and selections do their work, and their results are replaced by "
            f"those of a trace: {suite.forced} (exact top {100 * trace['budget']:g}% of every step, similarities of its queries; "
            f"from {trace['text']}); what replacing takes on the stream that computes is taken off the steps. Layers: the nearest "
            f"in relative depth; KV heads: modulo {trace['kv_heads']}; positions: blocks of 128 tokens at their relative place.")


def write_page(suite, page, today):
    page.heading("The papers' evaluation", level=1)
    page.paragraph(f"    {suite.description['command']}")
    if "throughput" in suite.experiments:
        experiments.margins(suite, page)
    if suite.notes:
        page.paragraph(suite.notes)
    page.paragraph(sources(suite, today))
    page.paragraph(forced(suite))
    alone = dict.fromkeys(key[1] for key in suite.all_cells()
                          if (suite.measured(key) or {}).get("locality") == "one token")
    if alone:
        page.paragraph(
            f"Nothing is forced on some measurements of {'; '.join(alone)}: one token is fed over and over, so that queries differ "
            "by their position alone. What they select of random keys lies scattered all the same, so that a cache of blocks hits "
            "less than in a text; Table 3 has the hit ratios beside the published ones.")
    for name in suite.experiments:
        experiments.WRITERS[name](suite, page)
    page.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, help="what the suite wrote: suite.json and cells/")
    parser.add_argument("--page", type=pathlib.Path, help="the page; default: the directory's name with .md beside it")
    parser.add_argument("--pictures", type=pathlib.Path, help="directory of the pictures; default: the suite's")
    options = parser.parse_args()
    page = options.page or options.directory.with_suffix(".md")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    write_page(Suite(options.directory), Page(page, options.pictures or options.directory), today)


if __name__ == "__main__":
    main()
