"""Muon: momentum whose matrix is orthogonalized (Newton-Schulz) before the step; for hidden matrices."""

import torch


@torch.compile(dynamic=False)
def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """Approximates the nearest semi-orthogonal matrices: g [n, rows, columns], five quintic steps in bf16."""
    x = g.bfloat16()
    flip = x.size(-2) > x.size(-1)
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if flip else x


class Muon(torch.optim.Optimizer):
    """Weights of the same shape are stacked and updated together."""

    def __init__(self, weights, rate: float, momentum: float = 0.95, decay: float = 0.01):
        super().__init__(list(weights), {"lr": rate, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for weight in group["params"]:
                shapes.setdefault(weight.shape, []).append(weight)
            for shape, weights in shapes.items():
                state = self.state[weights[0]]
                grads = torch.stack([w.grad for w in weights])
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(grads)
                buffer = state["buffer"].lerp_(grads, 1 - group["momentum"])
                update = orthogonal(grads.lerp(buffer, group["momentum"])).float()
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(weights, 1 - group["lr"] * group["decay"])
                torch._foreach_add_(weights, list(update.unbind(0)), alpha=-scale)
