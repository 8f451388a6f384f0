"""Batches for training: all data is in device memory, so that no loader can keep the GPU waiting."""

import pathlib
import time

import numpy as np
import torch


class Code:
    """Windows of the code stream at random positions, each preceded by BOS."""

    def __init__(self, path: pathlib.Path, bos: int, device):
        self.tokens = torch.from_numpy(np.load(path).astype(np.int16)).to(device)
        self.bos, self.device = bos, device

    def rows(self, count: int, length: int):
        """[count, length + 1] ids, and weights of one."""
        start = torch.randint(len(self.tokens) - length, (count, 1), device=self.device)
        ids = self.tokens[start + torch.arange(length, device=self.device)].long()
        ids = torch.cat([torch.full((count, 1), self.bos, device=self.device), ids], dim=1)
        return ids, torch.ones(ids.shape, device=self.device)


class Retrieval:
    """A stage's packed rows, drawn without replacement until all were used, then again."""

    def __init__(self, folder: pathlib.Path, stage: int, device):
        self.folder, self.stage, self.device = folder, stage, device
        self.files = set()
        self.rows_, self.weights, self.queue, self.passes = None, None, [], 0
        while not self.refresh(minimum=4):
            time.sleep(1)

    def refresh(self, minimum: int = 1) -> bool:
        """Loads files that have appeared since the last call; false while there are fewer than `minimum`."""
        found = sorted(p for p in self.folder.glob(f"stage{self.stage}_*.npz") if not p.name.endswith(".tmp.npz"))
        if len(found) < minimum:
            return False
        for path in found:
            if path in self.files:
                continue
            self.files.add(path)
            part = np.load(path)
            rows = torch.from_numpy(part["rows"].astype(np.int16)).to(self.device)
            weights = torch.from_numpy(part["weights"]).to(self.device)
            first = 0 if self.rows_ is None else len(self.rows_)
            self.rows_ = rows if first == 0 else torch.cat([self.rows_, rows])
            self.weights = weights if first == 0 else torch.cat([self.weights, weights])
            self.queue += range(first, first + len(rows))
        order = torch.randperm(len(self.queue)).tolist()
        self.queue = [self.queue[i] for i in order]
        return True

    def rows(self, count: int, length: int):
        if len(self.queue) < count:
            self.passes += 1
            self.queue = torch.randperm(len(self.rows_)).tolist()
            self.refresh()
        picked = torch.tensor(self.queue[:count], device=self.device)
        del self.queue[:count]
        return self.rows_[picked].long(), self.weights[picked].float() / 16


def batch(code: Code, retrieval: Retrieval, rows: int, length: int, share: float, generator):
    """ids and loss weights, each [rows, length + 1]; the share of retrieval rows varies around `share`."""
    count = int(rows * share + generator.random())
    a, wa = retrieval.rows(count, length)
    b, wb = code.rows(rows - count, length)
    return torch.cat([a, b]), torch.cat([wa, wb])
