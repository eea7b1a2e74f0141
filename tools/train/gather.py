"""Starts a head of the last layer that looks for flawed tokens anywhere before, for the verdict on a whole solution.

Its key is a linear score beside a constant, fitted to tell the first flawed token of a judged solution; its value is the
score itself, written along `no` minus `yes`.
"""

import argparse
import os

import torch

from data import Records, token_ids
from evaluate import load
from grow import ridge


CONSTANT = 4.0


def fit_score(x, flaw, shared):
    """Logistic regression without a bias, as a head has none; it starts from a direction that all states share."""
    held = len(x) // 6
    with torch.enable_grad():
        w = (-3 * shared).requires_grad_(True)
        optimizer = torch.optim.Adam([w], lr=0.02)
        for step in range(500):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * (1 - step / 500)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x[held:] @ w, flaw[held:].float(),
                                                                        pos_weight=torch.tensor(3.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    w = w.detach()
    said, truth = x[:held] @ w > 0, flaw[:held]
    print(f"score: held out flaws found {said[truth].float().mean():.3f} of {truth.sum()}, "
          f"false alarms {said[~truth].float().mean():.5f}")
    return w


def before_last(model, ids):
    """Hidden states before the last layer."""
    x = model.embed_tokens(ids)
    cos, sin = model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
    for layer in model.layers[:-1]:
        x = layer(x, cos, sin)
    return x


@torch.no_grad()
def choose_size(model, generator, output, start, value, shared, ids_of):
    """Sets the size of the write and the shift of its value to those with the best balanced accuracy on judged training problems."""
    records = Records(generator, 80, 0, 0, 100, 0, 12, 20, 12000)
    yes_id, no_id, verdict = ids_of["yes"], ids_of["no"], ids_of["verdict"]
    batches = [records.next()[0] for _ in range(6)]
    # Only the last layer depends on the size.
    states, truths = [], []
    for ids, targets in batches:
        x = before_last(model, ids)
        for row in range(len(ids)):
            last = (ids[row] == verdict).nonzero()[0, 0]
            states.append(x[row : row + 1, : last + 1])
            truths.append(int(targets[row, last] == no_id))
    base, score = output[:, 0] / start, value.clone()
    best = (0.0, start, 0.0)
    for size in (0.004, 0.007, 0.01, 0.015, 0.025):
        for shift in (-2.0, -1.0, 0.0, 1.0, 2.0):
            output[:, 0] = base * size
            value.copy_(score + shift * shared)
            hits, counts = [0, 0], [0, 0]
            for x, truth in zip(states, truths):
                cos, sin = model.cos[: x.shape[1]], model.sin[: x.shape[1]]
                logits = model.logits(model.norm(model.layers[-1](x, cos, sin)[0, -1]))
                hits[truth] += int((logits[no_id] > logits[yes_id]).item() == truth)
                counts[truth] += 1
            yes, no = hits[0] / counts[0], hits[1] / counts[1]
            print(f"size {size} shift {shift}: yes {yes:.3f} no {no:.3f} balanced {(yes + no) / 2:.3f} n {sum(counts)}", flush=True)
            if (yes + no) / 2 > best[0]:
                best = ((yes + no) / 2, size, shift)
    output[:, 0] = base * best[1]
    value.copy_(score + best[2] * shared)
    print("chosen", best)


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
    records = Records(a.generator, 79, 0, 0, 100, 0, 6, 22, 12000)
    ids_of = token_ids(a.generator)
    yes, no = ids_of["yes"], ids_of["no"]
    xs, flaws = [], []
    for _ in range(16):
        (ids, targets), _ = records.next()
        x = before_last(model, ids)
        rms = x.pow(2).mean().sqrt()
        x = layer.input_layernorm(x)
        before = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=-100)
        first = (targets == no) & (before == yes)
        # The problem counts too: a head that looks anywhere must not be drawn to it.
        problem = (targets == -100) & (ids != ids_of["<pad>"])
        keep = (targets == yes) | first | problem
        xs.append(x[keep])
        flaws.append(first[keep])
    x, flaw = torch.cat(xs), torch.cat(flaws)
    shared = ridge(x, torch.ones(len(x), 1))[:, 0]
    score = fit_score(x, flaw, shared)
    print(f"score of others {(x @ score)[~flaw].mean():.2f} sd {(x @ score)[~flaw].std():.2f}, of flaws {(x @ score)[flaw].mean():.2f}")
    print(f"shared {(x @ shared).mean():.2f} sd {(x @ shared).std():.3f}")
    c, attention = model.c, layer.self_attn
    h = c.head_dim
    slow = torch.tensor([h // 2 - 2, h // 2 - 1, h - 2, h - 1])
    direction = torch.zeros(h)
    direction[slow] = 1.0
    attention.q_proj.weight[:h] = 30 * torch.outer(direction, shared / shared.norm())
    # Beside a constant, so that the norm leaves a graded key and not a sign.
    beside = torch.zeros(h)
    beside[torch.tensor([h // 2 - 4, h // 2 - 3, h - 4, h - 3])] = 1.0
    attention.k_proj.weight[:h] = 4 * torch.outer(direction, score) + 4 * CONSTANT * torch.outer(beside, shared)
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight[slow] = 1.2
    attention.v_proj.weight[:h] = 0.0
    attention.v_proj.weight[0] = score
    attention.o_proj.weight[:, : 2 * h] = 0.0
    to = model.embed_tokens.weight[no] - model.embed_tokens.weight[yes]
    attention.o_proj.weight[:, 0] = 0.03 * rms * c.hidden_size ** 0.5 * to / to.norm()
    choose_size(model, a.generator, attention.o_proj.weight, 0.03, attention.v_proj.weight[0], shared, ids_of)
    saved.update(model=model.state_dict(), gathered=True)
    os.makedirs(a.out, exist_ok=True)
    torch.save(saved, os.path.join(a.out, "checkpoint.pt"))
    os._exit(0)


if __name__ == "__main__":
    main()
