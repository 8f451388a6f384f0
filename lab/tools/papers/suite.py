"""The output of `litecache-lab papers`: suite.json, which describes what is measured, and one file per measured
cell."""

import json
import pathlib


class Suite:
    """A cell is identified by (kind, system, shape, batch, context) and belongs to one or more experiments."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.description = json.loads((directory / "suite.json").read_text())
        self.grid = self.description["grid"]
        self.forced = self.description["forced"]
        self.experiments = {}  # [name]: keys of cells, in the order of the suite
        self._cells = {}
        for experiment in self.description["experiments"]:
            keys = self.experiments[experiment["name"]] = []
            for cell in experiment["cells"]:
                key = tuple(cell["cell"][part] for part in ("kind", "system", "shape", "batch", "context"))
                keys.append(key)
                self._cells[key] = self._read(directory / "cells" / cell["file"], cell)
        machine = directory / "machine.json"
        self.machine = json.loads(machine.read_text()) if machine.exists() else None
        notes = directory / "notes.md"
        self.notes = notes.read_text() if notes.exists() else ""

    def _read(self, path, cell):
        """The file's content; None if there is none with these settings and, if it matters, this trace."""
        if not path.exists():
            return None
        result = json.loads(path.read_text())
        if result["cell"] != cell["cell"] or (cell["forced"] and result.get("forced", "") != self.forced):
            return None
        return result

    def measured(self, key):
        """The result of a measured cell, else None."""
        result = self._cells.get(key)
        return None if result is None or "skipped" in result else result

    def number(self, key, path):
        """A number of a measured cell, or None. path: "breakdown/products_ms"."""
        value = self.measured(key)
        for part in path.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def why_not(self, key):
        result = self._cells.get(key)
        return "not measured" if result is None else result.get("skipped", "")

    def all_cells(self):
        """Every cell of the experiments once."""
        return dict.fromkeys(key for keys in self.experiments.values() for key in keys)

    def systems(self, experiment, shape=None):
        """Names of an experiment's systems, in the order of their first cells."""
        return list(dict.fromkeys(key[1] for key in self.experiments[experiment] if shape in (None, key[2])))

    def contexts(self, experiment, shape):
        return list(dict.fromkeys(key[4] for key in self.experiments[experiment] if key[2] == shape))
