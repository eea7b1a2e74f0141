"""Lets a checkpoint write solutions of training problems, and writes them as `judge` records: as many right as wrong.

Labels come from the generator: it compares each solution with the true chain, and drops those that deviate and still
have the right answer.
"""

import argparse
import random
import subprocess

import torch

from data import read_records, token_ids
from evaluate import generate, load, problems


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generator", required=True)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", type=int, default=101)
    p.add_argument("--sizes", default="8,11,14,17,20,23,26,32")
    p.add_argument("--count", type=int, default=200, help="problems of each size")
    p.add_argument("--temperature", type=float, default=1.0)
    a = p.parse_args()
    torch.set_num_threads(2)
    ids = token_ids(a.generator)
    tokens = sorted(ids, key=ids.get)
    no = ids["no"]
    model, _ = load(a.checkpoint)
    encode = lambda text: [ids[w] for w in text.split()]
    right, wrong = [], []
    for size in a.sizes.split(","):
        items = problems(a.generator, a.seed, size, a.count, split="training")
        limit = max(len(x["solution"].split()) for x in items) + 24
        written = generate(model, [encode(x["prompt"]) for x in items], limit, ids["<eos>"], 1.0, a.temperature, seed=a.seed)
        lines = []
        for x, row in zip(items, written):
            text = " ".join(tokens[t] if t < len(tokens) else "<unk>" for t in row)
            if text.endswith(".") and text.count("answer") == 1:
                lines.append(f"{a.seed} {size} {x['index']} {x['wording']}\t{text}\n")
        with open(a.out, "wb") as f:
            subprocess.run([a.generator, "judged", "training"], input="".join(lines).encode(), stdout=f, check=True)
        records = read_records(a.out)
        flawed = [r for r in records if r[0][-2] == no]
        good = [r for r in records if r[0][-2] != no]
        print(f"size {size}: {len(items)} problems, {len(lines)} complete, {len(good)} right, {len(flawed)} wrong", flush=True)
        right += good
        wrong += flawed
    # Pairs by length, so that length alone does not tell.
    random.Random(a.seed).shuffle(right)
    right.sort(key=lambda r: -len(r[0]))
    wrong.sort(key=lambda r: -len(r[0]))
    count = min(len(right), len(wrong))
    kept = right[:count] + wrong[-count:]
    with open(a.out, "wb") as f:
        for tokens_, targets in kept:
            f.write(len(tokens_).to_bytes(2, "little") + tokens_.tobytes() + targets.tobytes())
    print(f"kept {count} right and {count} wrong", flush=True)


if __name__ == "__main__":
    main()
