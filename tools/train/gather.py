"""Starts a head of the last layer that looks for flawed tokens anywhere before, for the verdict on a whole solution.

Its key is the sign of a linear score, fitted to tell the first flawed token of a judged solution; its value is the
score itself, written along `no` minus `yes`.
"""

import argparse
import os

import torch

from data import Records
from evaluate import load
from grow import NO, YES, ridge

VERDICT = 78  # token id, as NO and YES


def fit_score(x, flaw):
    """Logistic regression with a bias; returns weights `[hidden]` and the bias."""
    held = len(x) // 6
    with torch.enable_grad():
        w = torch.zeros(x.shape[1], requires_grad=True)
        b = torch.tensor(-3.0, requires_grad=True)
        optimizer = torch.optim.Adam([w, b], lr=0.02)
        for step in range(400):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * (1 - step / 400)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x[held:] @ w + b, flaw[held:].float(),
                                                                        pos_weight=torch.tensor(8.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    w, b = w.detach(), b.detach()
    said, truth = x[:held] @ w + b > 0, flaw[:held]
    print(f"score: held out flaws found {said[truth].float().mean():.3f} of {truth.sum()}, "
          f"false alarms {said[~truth].float().mean():.5f}")
    return w, b


@torch.no_grad()
def choose_size(model, generator, output, start):
    """Sets the size of the write to the one with the best balanced accuracy on judged training problems."""
    records = Records(generator, 80, 0, 0, 100, 0, 0, 12, 20, 12000)
    batches = [records.next()[0] for _ in range(6)]
    base = output[:, 0] / start
    best = (0.0, start)
    for size in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5):
        output[:, 0] = base * size
        hits, counts = [0, 0], [0, 0]
        for ids, targets in batches:
            hidden = model.hidden(ids)
            for row in range(len(ids)):
                last = (ids[row] == VERDICT).nonzero()[0, 0]
                logits = model.logits(hidden[row, last])
                truth = int(targets[row, last] == NO)
                hits[truth] += int((logits[NO] > logits[YES]).item() == truth)
                counts[truth] += 1
        yes, no = hits[0] / counts[0], hits[1] / counts[1]
        print(f"size {size}: yes {yes:.3f} no {no:.3f} balanced {(yes + no) / 2:.3f} n {sum(counts)}")
        best = max(best, ((yes + no) / 2, size))
    output[:, 0] = base * best[1]


@torch.no_grad()
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generator", required=True)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(2)
    model, saved = load(a.checkpoint)
    layer = model.layers[-1]
    records = Records(a.generator, 79, 0, 0, 100, 0, 0, 6, 22, 12000)
    xs, flaws = [], []
    for _ in range(16):
        (ids, targets), _ = records.next()
        x = model.embed_tokens(ids)
        cos, sin = model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
        for before in model.layers[:-1]:
            x = before(x, cos, sin)
        rms = x.pow(2).mean().sqrt()
        x = layer.input_layernorm(x)
        before = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=-100)
        first = (targets == NO) & (before == YES)
        keep = ((targets == YES) | first) & (targets != -100)
        xs.append(x[keep])
        flaws.append(first[keep])
    x, flaw = torch.cat(xs), torch.cat(flaws)
    w, b = fit_score(x, flaw)
    shared = ridge(x, torch.ones(len(x), 1))[:, 0]
    score = w + b * shared
    print(f"shared {(x @ shared).mean():.2f} sd {(x @ shared).std():.3f}")
    c, attention = model.c, layer.self_attn
    h = c.head_dim
    slow = torch.tensor([h // 2 - 2, h // 2 - 1, h - 2, h - 1])
    direction = torch.zeros(h)
    direction[slow] = 1.0
    attention.q_proj.weight[:h] = 30 * torch.outer(direction, shared / shared.norm())
    attention.k_proj.weight[:h] = 30 * torch.outer(direction, score / score.norm())
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight[slow] = 1.2
    attention.v_proj.weight[:h] = 0.0
    attention.v_proj.weight[0] = score
    attention.o_proj.weight[:, : 2 * h] = 0.0
    to = model.embed_tokens.weight[NO] - model.embed_tokens.weight[YES]
    attention.o_proj.weight[:, 0] = 0.03 * rms * c.hidden_size ** 0.5 * to / to.norm()
    choose_size(model, a.generator, attention.o_proj.weight, 0.03)
    saved.update(model=model.state_dict(), gathered=True)
    os.makedirs(a.out, exist_ok=True)
    torch.save(saved, os.path.join(a.out, "checkpoint.pt"))
    os._exit(0)


if __name__ == "__main__":
    main()
