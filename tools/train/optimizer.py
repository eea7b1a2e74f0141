"""Muon for the matrices of the blocks, AdamW for embeddings and norms."""

import torch


def orthogonalise(g, steps=5):
    x = g.bfloat16()
    wide = x.shape[-2] > x.shape[-1]
    if wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if wide else x).float()


class Muon:
    def __init__(self, params, momentum=0.95, weight_decay=0.01, factor=None):
        self.factor = factor or {}
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.state = {s: torch.zeros(len(ps), *s) for s, ps in self.groups.items()}
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr):
        for shape, params in self.groups.items():
            g = torch.stack([p.grad for p in params])
            m = self.state[shape]
            m.lerp_(g, 1 - self.momentum)
            update = orthogonalise(g.lerp(m, self.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for p, u in zip(params, update):
                p.mul_(1 - lr * self.weight_decay)
                p.add_(u, alpha=-lr * scale * self.factor.get(p, 1.0))
                p.grad = None

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state
