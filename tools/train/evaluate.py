"""Training-side evaluation: greedy answers per level, verdicts, and answers when random cache entries are dropped."""

import argparse
import json
import math
import os
import subprocess
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from data import ranges, token_ids
from model import Config, Decoder, rotate


def wilson(right, n, z=1.96):
    if n == 0:
        return 0.0, 0.0, 0.0
    p = right / n
    mid = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return p, mid - half, mid + half


@torch.no_grad()
def forward(model, ids, positions, cache, mask):
    """One block of tokens. `cache`: per layer [k, v] or None; `mask`: [b, 1, t, kv] or None for causal."""
    c = model.c
    x = model.embed_tokens(ids)
    cos, sin = model.cos[positions][:, None], model.sin[positions][:, None]
    b, t = ids.shape
    for i, layer in enumerate(model.layers):
        a = layer.self_attn
        h = layer.input_layernorm(x)
        q = a.q_norm(a.q_proj(h).view(b, t, -1, c.head_dim)).transpose(1, 2)
        k = a.k_norm(a.k_proj(h).view(b, t, -1, c.head_dim)).transpose(1, 2)
        v = a.v_proj(h).view(b, t, -1, c.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        start, kc, vc = cache[i]
        kc[:, :, start : start + t] = k
        vc[:, :, start : start + t] = v
        cache[i][0] = start + t
        kk, vv = kc[:, :, : start + t], vc[:, :, : start + t]
        group = c.num_attention_heads // c.num_key_value_heads
        m = mask(i) if mask is not None else None
        y = F.scaled_dot_product_attention(q, kk.repeat_interleave(group, 1), vv.repeat_interleave(group, 1),
                                           attn_mask=m, is_causal=m is None and t > 1)
        x = x + a.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.logits(model.norm(x))


@torch.no_grad()
def generate(model, prompts, limit, end, keep_ratio=1.0, temperature=0.0, seed=0, recent=0, batch=100):
    """Continues each prompt. With `keep_ratio` < 1, after each step every layer and KV head keeps a random set of
    `keep_ratio` times the length so far (nothing protected but the `recent` newest; what is dropped stays dropped)."""
    gen = torch.Generator().manual_seed(seed)
    out = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    c = model.c
    groups = c.num_attention_heads // c.num_key_value_heads
    for at in range(0, len(order), batch):
        group = order[at : at + batch]
        b, n = len(group), max(len(prompts[i]) for i in group)
        pad = torch.tensor([n - len(prompts[i]) for i in group])
        ids = torch.tensor([[0] * (n - len(prompts[i])) + prompts[i] for i in group])
        size = n + limit
        cache = [[0, torch.zeros(b, c.num_key_value_heads, size, c.head_dim),
                  torch.zeros(b, c.num_key_value_heads, size, c.head_dim)] for _ in model.layers]
        real = torch.arange(size)[None] >= pad[:, None]
        alive = real[None, :, None, :].repeat(len(model.layers), 1, c.num_key_value_heads, 1)
        # A padding query sees itself only, so that its row is finite.
        first = (torch.ones(n, n, dtype=torch.bool).tril()[None] & real[:, None, :n]) | torch.eye(n, dtype=torch.bool)
        logits = forward(model, ids, (torch.arange(n)[None] - pad[:, None]).clamp(min=0), cache, lambda i: first[:, None])[:, -1]
        done = torch.zeros(b, dtype=torch.bool)
        produced = []
        for step in range(limit):
            if temperature > 0:
                token = torch.multinomial((logits / temperature).softmax(-1), 1, generator=gen)[:, 0]
            else:
                token = logits.argmax(-1)
            produced.append(token)
            done |= token == end
            if done.all():
                break
            now = n + step + 1
            if keep_ratio < 1:
                budget = (keep_ratio * (now - pad)).long().clamp(min=4)
                noise = torch.rand(alive[..., : now - 1].shape, generator=gen)
                noise[~alive[..., : now - 1]] = -1
                if recent:
                    noise[..., max(0, now - 1 - recent) :] = 2
                rank = noise.argsort(-1, descending=True).argsort(-1)
                alive[..., : now - 1] &= rank < (budget - 1)[None, :, None, None]
            shown = alive[..., :now]
            mask = lambda i: shown[i].repeat_interleave(groups, 1)[:, :, None, :]
            logits = forward(model, token[:, None], (now - 1 - pad)[:, None], cache, mask)[:, -1]
        produced = torch.stack(produced, 1).tolist()
        for i, row in zip(group, produced):
            out[i] = row[: row.index(end)] if end in row else row
    return out


def load(path):
    """A checkpoint of training, or a folder with the exported files."""
    if os.path.isdir(path):
        with open(os.path.join(path, "config.json")) as f:
            config = json.load(f)
        model = Decoder(Config(**{key: config[key] for key in vars(Config())}))
        stored = load_file(os.path.join(path, "model.safetensors"))
        model.load_state_dict({key.removeprefix("model."): value.float() for key, value in stored.items()})
        return model.eval(), dict(step=0, seen=0, seconds=0.0)
    saved = torch.load(path, weights_only=False)
    model = Decoder(Config(**saved["config"]))
    model.load_state_dict(saved["model"])
    return model.eval(), saved


def problems(generator, seed, level, count, split="evaluation"):
    text = subprocess.run([generator, "problems", split, str(seed), str(level), str(count)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in text.stdout.splitlines()]


def answer_of(words):
    if "answer" in words:
        at = words.index("answer")
        if at + 2 < len(words) and words[at + 2].isdigit():
            return int(words[at + 2])
    return None


@torch.no_grad()
def verdict_by_layer(model, texts, yes, no):
    """Logit lens at the last token of each text. Returns p_yes against `no`, `[layer, text]`, and the entropy over the
    vocabulary in nats, `[layer, text]`; layers in order, the last one is the output."""
    shares, entropies = [], []
    for text in texts:
        ids = torch.tensor([text])
        x = model.embed_tokens(ids)
        cos, sin = model.cos[: ids.shape[1]], model.sin[: ids.shape[1]]
        rows = []
        for layer in model.layers:
            x = layer(x, cos, sin)
            rows.append(x[0, -1])
        logits = model.logits(model.norm(torch.stack(rows)))
        logp = logits.log_softmax(-1)
        shares.append(torch.sigmoid(logits[:, yes] - logits[:, no]))
        entropies.append(-(logp.exp() * logp).sum(-1))
    return torch.stack(shares, 1), torch.stack(entropies, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generator", required=True)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--seed", type=int, default=20260)
    p.add_argument("--levels", default="easy,default,hard")
    p.add_argument("--count", type=int, default=200)
    p.add_argument("--keep", default="")
    p.add_argument("--judge", type=int, default=1)
    p.add_argument("--own", type=int, default=0, help="1: verdicts on solutions that the model writes at temperature 1")
    p.add_argument("--layers", type=int, default=0, help="1: the verdict read from each layer by the logit lens")
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--half", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(2)
    ids = token_ids(a.generator)
    tokens = sorted(ids, key=ids.get)
    names = set(tokens[slice(*ranges(ids)[1])])
    model, saved = load(a.checkpoint)
    if a.half:
        for q in model.parameters():
            q.data = q.data.half().float()
    print(f"step {saved['step']} tokens {saved['seen'] / 1e6:.1f}M seconds {saved['seconds']:.0f}")
    for level in a.levels.split(","):
        items = problems(a.generator, a.seed, level, a.count)
        encode = lambda text: [ids[w] for w in text.split()]
        prompts = [encode(x["prompt"]) for x in items]
        limit = max(len(x["solution"].split()) for x in items) + 40
        for keep in [1.0] + [float(k) for k in a.keep.split(",") if k]:
            began = time.time()
            out = generate(model, prompts, limit, ids["<eos>"], keep, a.temperature)
            words = [[tokens[t] if t < len(tokens) else "<unk>" for t in row] for row in out]
            right = [answer_of(w) == x["answer"] for w, x in zip(words, items)]
            exact = sum(" ".join(w) == x["solution"] for w, x in zip(words, items))
            r, lo, hi = wilson(sum(right), len(items))
            by = [f"{sum(v for v, x in zip(right, items) if x['wording'] == k) / max(1, sum(x['wording'] == k for x in items)):.2f}"
                  for k in range(8)]
            print(f"{level} keep {keep}: answer {r:.3f} [{lo:.3f}, {hi:.3f}] n {len(items)} exact chains {exact / len(items):.3f} "
                  f"by wording {' '.join(by)} ({time.time() - began:.0f} s)", flush=True)
            if keep == 1.0:
                kinds = {}
                for w, x in zip(words, items):
                    s = x["solution"].split()
                    at = next((i for i in range(len(s)) if i >= len(w) or w[i] != s[i]), None)
                    if at is not None:
                        before = s[at - 1] if at else "start"
                        kind = ("lookup" if before in names and s[at].isdigit() and s[at - 2] != "=" else
                                "result" if at > 1 and s[at - 2] == "=" and s[at].isdigit() else
                                f"after '{'NAME' if before in names else 'DIGIT' if before.isdigit() else before}'")
                        kinds[kind] = kinds.get(kind, 0) + 1
                print("   first deviation:", kinds, flush=True)
        if a.judge:
            hits = {}
            for key, want in (("judge_right", "yes"), ("judge_flawed", "no")):
                texts = [encode(x[key]) for x in items]
                right = 0
                by_length = {}
                for t in texts:
                    by_length.setdefault(len(t), []).append(t)
                for group in by_length.values():
                    with torch.no_grad():
                        logits = model.logits(model.hidden(torch.tensor(group))[:, -1])
                    yes = logits[:, ids["yes"]] > logits[:, ids["no"]]
                    right += (yes == (want == "yes")).sum().item()
                hits[want] = right / len(texts)
            n = len(items)
            _, low, high = wilson(round((hits["yes"] + hits["no"]) * n), 2 * n)
            print(f"{level} verdict: yes {hits['yes']:.3f} no {hits['no']:.3f} balanced {(hits['yes'] + hits['no']) / 2:.3f} "
                  f"[{low:.3f}, {high:.3f}] n {2 * n}", flush=True)
        if a.layers:
            right, _ = right_part = verdict_by_layer(model, [encode(x["judge_right"]) for x in items], ids["yes"], ids["no"])
            wrong, _ = wrong_part = verdict_by_layer(model, [encode(x["judge_flawed"]) for x in items], ids["yes"], ids["no"])
            said = torch.cat((right, wrong), 1)
            entropy = torch.cat((right_part[1], wrong_part[1]), 1)
            for i in range(len(said)):
                agree = ((said[i] > 0.5) == (said[-1] > 0.5)).float().mean()
                decisive = ((said[i] - 0.5).abs() > 0.4).float().mean()
                balanced = ((right[i] > 0.5).float().mean() + (wrong[i] <= 0.5).float().mean()) / 2
                print(f"{level} layer {i + 1}: p_yes right {right[i].mean():.3f} flawed {wrong[i].mean():.3f} balanced {balanced:.3f} "
                      f"as at the end {agree:.3f} decisive {decisive:.3f} entropy {entropy[i].median():.2f}", flush=True)
        if a.own:
            written = generate(model, prompts, limit, ids["<eos>"], 1.0, 1.0)
            hits, counts = {"yes": 0, "no": 0}, {"yes": 0, "no": 0}
            for row, x in zip(written, items):
                said_answer = answer_of([tokens[t] if t < len(tokens) else "<unk>" for t in row])
                if said_answer is None:
                    continue
                head = x["judge_right"].split(" shown : ")[0] + " shown :"
                with torch.no_grad():
                    logits = model.logits(model.hidden(torch.tensor([encode(head) + row + [ids["verdict"]]]))[0, -1])
                truth = "yes" if said_answer == x["answer"] else "no"
                counts[truth] += 1
                hits[truth] += ("yes" if logits[ids["yes"]] > logits[ids["no"]] else "no") == truth
            print(f"{level} verdict on own solutions: right called right {hits['yes']} / {counts['yes']}, "
                  f"wrong called wrong {hits['no']} / {counts['no']}", flush=True)


if __name__ == "__main__":
    main()
