"""Adds two layers to a checkpoint that solves but does not judge.

A mistake is a token that the solver would not have written. What it would have written is only known in the last
layer of the position before, so a judge needs a layer after that. The first new layer starts with a head that
brings the prediction of the previous position, and with units that compare it with the token that is there; both
are fitted by least squares on hidden states. The second new layer starts at random. Neither changes the output at
first, except that the head writes into the residual.
"""

import argparse
import os

import torch

from data import Records, ranges, token_ids
from evaluate import load
from model import Config, Decoder



def ridge(x, y, strength=1e-2):
    return torch.linalg.solve(x.T @ x / len(x) + strength * torch.eye(x.shape[1]), x.T @ y / len(x))


def fit_units(model, layer, records, index, rms, yes, no):
    """Trains the units of the comparing layer alone to tell flaws, on hidden states; writes along `no` minus `yes`."""
    states, flaws = [], []
    with torch.no_grad():
        for _ in range(14):
            (ids, targets), _ = records.next()
            x = model.embed_tokens(ids)
            cos, sin = model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
            for before in model.layers[:index]:
                x = before(x, cos, sin)
            x = x + layer.self_attn(layer.input_layernorm(x), cos, sin)
            keep = targets != -100
            states.append(layer.post_attention_layernorm(x)[keep])
            flaws.append((targets[keep] == no).float())
    states, flaws = torch.cat(states), torch.cat(flaws)
    held = len(states) // 8
    gate, up = (w.weight.detach().clone() for w in (layer.mlp.gate_proj, layer.mlp.up_proj))
    down = torch.zeros(len(gate), 1)
    bias = torch.tensor([-3.0])
    fitted = [gate, up, down, bias]
    with torch.enable_grad():
        for w in fitted:
            w.requires_grad_(True)
        optimizer = torch.optim.AdamW(fitted, lr=3e-3, weight_decay=0.01)
        score = lambda x: ((torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down)[:, 0] + bias
        steps = 700
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * (1 - step / steps)
            pick = torch.randint(held, len(states), (4096,))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(score(states[pick]), flaws[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        said = score(states[:held]) > 0
        truth = flaws[:held] > 0
        print(f"units: {len(states)} positions, loss {loss.item():.4f}; held out: flaws found "
              f"{said[truth].float().mean():.3f}, false alarms {said[~truth].float().mean():.4f}")
        layer.mlp.gate_proj.weight.copy_(gate)
        layer.mlp.up_proj.weight.copy_(up)
        direction = model.embed_tokens.weight[no] - model.embed_tokens.weight[yes]
        size = 0.02 * rms * model.c.hidden_size ** 0.5
        layer.mlp.down_proj.weight.copy_(size * torch.outer(direction / direction.norm(), down[:, 0]))


@torch.no_grad()
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generator", required=True)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--keep-layers", type=int, default=6)
    p.add_argument("--refit", type=int, default=0, help="1: the checkpoint has grown; fit its comparing layer again")
    p.add_argument("--write", type=float, default=0.3)
    a = p.parse_args()
    torch.manual_seed(2)
    torch.set_num_threads(2)
    old, saved = load(a.checkpoint)
    depth = a.keep_layers
    model = Decoder(Config(**{**saved["config"], "num_hidden_layers": depth + 2}))
    new = [depth - 1, depth + 1]  # before and after the last old layer
    source = {i: i for i in range(depth - 1)} | {depth: depth - 1}
    if a.refit:
        source = {i: i for i in range(depth + 2) if i != new[0]}

    def old_name(name):
        if not name.startswith("layers."):
            return name
        _, index, rest = name.split(".", 2)
        return f"layers.{source[int(index)]}.{rest}" if int(index) in source else None

    stored = old.state_dict()
    for name, value in model.state_dict().items():
        if old_name(name):
            value.copy_(stored[old_name(name)])
    for i in new:
        if i in source:
            continue
        model.layers[i].self_attn.o_proj.weight.zero_()
        model.layers[i].mlp.down_proj.weight.zero_()

    # Hidden states before the first new layer, with the current and the next token.
    records = Records(a.generator, 77, 0, 0, 40, 40, 6, 20, 12000)
    batches = [records.next()[0] for _ in range(5)]

    def states_of(ids, layers):
        x = model.embed_tokens(ids)
        cos, sin = model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
        for layer in layers:
            x = layer(x, cos, sin)
        return x

    states, current, following, inside = [], [], [], []
    for ids, targets in batches:
        x = states_of(ids, model.layers[: new[0]])
        states.append(x[:, :-1].reshape(-1, x.shape[-1]))
        current.append(ids[:, :-1].flatten())
        following.append(ids[:, 1:].flatten())
        inside.append((targets[:, :-1] != -100).flatten())
    states, current, following, inside = map(torch.cat, (states, current, following, inside))
    rms = states.pow(2).mean(-1, keepdim=True).sqrt()
    x = states / rms
    c, h = model.c, model.c.head_dim
    code = torch.nn.functional.normalize(torch.randn(c.vocab_size, h), dim=-1)
    ids_of = token_ids(a.generator)
    digits, names, signs = ranges(ids_of)
    code[slice(*digits)] = torch.linalg.qr(torch.randn(h, 10))[0].T  # digits well apart
    shared = ridge(x, torch.ones(len(x), 1))[:, 0]
    read_next = ridge(x[inside], code[following[inside]])
    within = lambda range_: (current >= range_[0]) & (current < range_[1])
    digit = inside & within(digits)
    other = inside & (within(names) | within(signs))
    read_digit = ridge(x[digit], code[current[digit]] - code[slice(*digits)].mean(0))
    read_other = ridge(x[other], code[current[other]])
    nearest = lambda w, y, sel: ((x[sel] @ w) @ code.T).argmax(-1).eq(y[sel]).float().mean().item()
    constant = x @ shared
    print(f"shared direction: mean {constant.mean():.2f} sd {constant.std():.2f} min {constant.min():.2f}; rms {rms.mean():.1f}; "
          f"nearest code: next {nearest(read_next, following, inside):.3f}, current digits {nearest(read_digit, current, digit):.3f}, "
          f"names and signs {nearest(read_other, current, other):.3f}")

    layer = model.layers[new[0]]
    attention = layer.self_attn
    half, fast = h // 2, torch.arange(3)
    inv = c.rope_theta ** (-torch.arange(0, h, 2).float() / h)
    query, key = torch.zeros(h), torch.zeros(h)
    query[fast], key[fast], key[fast + half] = 1.0, inv[fast].cos(), inv[fast].sin()
    shared = shared / shared.norm()
    # Norms of the layer start at one; weights are large against a step of the optimiser.
    attention.q_proj.weight[:h] = 30 * torch.outer(query, shared)
    attention.k_proj.weight[:h] = 30 * torch.outer(key, shared)
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight[fast] = 2.2
        norm.weight[fast + half] = 2.2
    value = 3.0
    attention.v_proj.weight[:h] = value * read_next.T
    # Written where the residual is nearly empty: readable although small.
    place = torch.linalg.eigh(x.T @ x / len(x))[1][:, :h]
    noise = (x @ place).pow(2).sum(-1).mean().sqrt()
    scale = a.write * rms.mean() * c.hidden_size ** 0.5
    attention.o_proj.weight[:, :h] = scale / value * place
    # Comparing units, in pairs of opposite sign, with gain against the small write.
    gain = rms.mean() / scale
    units = c.intermediate_size // 2
    for first, count, read in ((0, units, read_digit), (units, units // 2, read_other)):
        probe = torch.randn(count // 2, h)
        probe = torch.cat((probe, -probe)) * 2.0
        layer.mlp.gate_proj.weight[first : first + count] = gain * probe @ place.T
        layer.mlp.up_proj.weight[first : first + count] = probe @ read.T
    print(f"empty directions: norm {noise:.3f} against a write of {a.write * c.hidden_size ** 0.5:.2f}; gate gain {gain:.2f}")

    fit_units(model, layer, Records(a.generator, 78, 0, 0, 0, 100, 6, 22, 12000), new[0], rms.mean(),
              ids_of["yes"], ids_of["no"])

    order = [n for n, q in model.named_parameters() if q.dim() < 2 or "embed" in n]
    before = [n for n, q in old.named_parameters() if q.dim() < 2 or "embed" in n]
    adam = saved["adam"]
    adam["state"] = {i: adam["state"][before.index(old_name(n))] for i, n in enumerate(order) if old_name(n)}
    adam["param_groups"][0]["params"] = list(range(len(order)))
    saved.update(config=vars(c), model=model.state_dict(), adam=adam, muon=None, new_layers=new)
    os.makedirs(a.out, exist_ok=True)
    torch.save(saved, os.path.join(a.out, "checkpoint.pt"))
    os._exit(0)


if __name__ == "__main__":
    main()
