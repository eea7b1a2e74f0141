"""Trains the chain model. Constant learning rate after a warm-up; `--decay-steps N` runs the linear decay to zero."""

import argparse
import json
import os
import signal
import time

import torch
import torch.nn.functional as F
from torch import nn

from data import Records, ranges, read_records, token_ids
from model import Config, Decoder
from optimizer import Muon
from start import start_lookup


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generator", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--steps", type=int, default=100000)
    p.add_argument("--minutes", type=float, default=1e9)
    p.add_argument("--decay-steps", type=int, default=0)
    p.add_argument("--decay-minutes", type=float, default=0.0)
    p.add_argument("--resume")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--recall", type=int, default=15)
    p.add_argument("--judge", type=int, default=25)
    p.add_argument("--check", type=int, default=12)
    p.add_argument("--low", type=int, default=5)
    p.add_argument("--high", type=int, default=25)
    p.add_argument("--long", type=int, default=8, help="percent of records with more than HIGH statements")
    p.add_argument("--long-max", type=int, default=48)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--adam-lr", type=float, default=3e-3)
    p.add_argument("--compile", type=int, default=0)
    p.add_argument("--config", default="{}")
    p.add_argument("--save-minutes", type=float, default=5)
    p.add_argument("--extra", default="")
    p.add_argument("--start-lookup", type=int, default=1)
    p.add_argument("--verdict-weight", type=float, default=4.0)
    p.add_argument("--inside-weight", type=float, default=0.5)
    p.add_argument("--new-layer-factor", type=float, default=20.0)
    p.add_argument("--freeze", type=int, default=1)
    p.add_argument("--name-first", type=float, default=1.0,
                   help="share kept of the records whose statements begin with the name; they are learnt sooner")
    p.add_argument("--carry", type=float, default=0.0, help="weight of two readouts before the last layer: this token, next token")
    p.add_argument("--gathered", type=int, default=0)
    p.add_argument("--log", type=int, default=50)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)
    saved = torch.load(a.resume, weights_only=False) if a.resume else None
    config = Config(**(saved["config"] if saved else json.loads(a.config)))
    model = Decoder(config)
    print("parameters", sum(x.numel() for x in model.parameters()), vars(config), flush=True)
    matrices = [x for n, x in model.named_parameters() if x.dim() == 2 and "embed" not in n]
    others = [x for n, x in model.named_parameters() if x.dim() < 2 or "embed" in n]
    # New layers must be heard beside a residual that has grown during training.
    new_layers = saved.get("new_layers", []) if saved else []
    factor = {}
    for i in new_layers:
        layer = model.layers[i]
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            factor[module.weight] = a.new_layer_factor
    if new_layers and a.freeze:
        # The fitted head reads a weak direction; steps of fixed size would drown it in noise.
        layer = model.layers[new_layers[0]]
        attention = layer.self_attn
        for module in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            factor[module.weight] = 0.0
        if a.gathered:
            last = model.layers[new_layers[1]].self_attn
            for module in (last.q_proj, last.k_proj, last.v_proj, last.o_proj):
                factor[module.weight] = 0.1
        if a.gathered:
            factor[model.layers[new_layers[1]].mlp.down_proj.weight] = 1.0
            factor[layer.mlp.down_proj.weight] = 4.0
        else:
            factor[layer.mlp.down_proj.weight] = 4.0
        factor[layer.mlp.gate_proj.weight] = factor[layer.mlp.up_proj.weight] = 0.1
    # Readouts that are thrown away: a judge compares both, so both must be there before the last layer.
    readout = nn.Linear(config.hidden_size, 2 * config.vocab_size)
    readout_adam = torch.optim.AdamW(readout.parameters(), lr=a.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
    tap = config.num_hidden_layers - 1 if a.carry else None
    muon = Muon(matrices, factor=factor)
    adam = torch.optim.AdamW(others, lr=a.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
    step, seen, taken0, seconds0 = 0, 0, 0, 0.0
    if a.start_lookup and not saved:
        start_lookup(model)
    if saved:
        model.load_state_dict(saved["model"])
        if saved["muon"]:
            muon.load_state_dict(saved["muon"])
        adam.load_state_dict(saved["adam"])
        step, seen, taken0, seconds0 = saved["step"], saved["seen"], saved["taken"], saved["seconds"]
    extra = read_records(a.extra) if a.extra else []
    print("extra records", len(extra))
    ids_of = token_ids(a.generator)
    records = Records(a.generator, a.seed, taken0, a.recall, a.judge, a.check, a.low, a.high, a.tokens, a.long, a.long_max,
                      extra=extra, name_first=a.name_first)
    body = torch.compile(model.hidden, dynamic=True) if a.compile else model.hidden
    first_step, taken = step, 0
    digits, names, _ = ranges(ids_of)
    yes, no = ids_of["yes"], ids_of["no"]
    solve, judge, recall = ids_of["solve"], ids_of["judge"], ids_of["recall"]
    verdict, check = ids_of["verdict"], ids_of["check"]
    start = last_save = time.time()
    stats, since = {}, time.time()
    since_tokens = 0
    total = min(a.decay_steps or a.steps, a.steps)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    while not stopped and step - first_step < total and time.time() - start < a.minutes * 60:
        (ids, targets), taken = records.next()
        kind = ids[:, :1]
        keep = (targets != -100).flatten()
        inputs = ids.flatten()[keep]
        kinds = kind.expand_as(ids).flatten()[keep]
        wanted = targets.flatten()[keep]
        # Inside a judged proposal there are two losses: the verdict so far (on the two verdict logits only) and the
        # next token (everywhere but at the flaw itself), so that a mistake is seen as a failed prediction.
        inside = ((kinds == judge) | (kinds == check)) & (inputs != verdict) & ((wanted == yes) | (wanted == no))
        following = F.pad(ids[:, 1:], (0, 1)).flatten()[keep]
        verdict_next = F.pad(targets[:, 1:], (0, 1), value=yes).flatten()[keep]
        flaw_next = inside & ((wanted == yes) | (kinds == check)) & (verdict_next == no)
        hidden = body(ids, torch.bfloat16, tap)
        if a.carry:
            hidden, before = hidden
            before = F.rms_norm(before.reshape(-1, config.hidden_size)[keep].float(), (config.hidden_size,))
            read = readout(before)
        hidden = hidden.reshape(-1, config.hidden_size)[keep]
        logits = model.logits(hidden)
        weight = torch.where(inputs == verdict, a.verdict_weight, 1.0)
        weight[flaw_next] = 0.0
        losses = F.cross_entropy(logits, torch.where(inside, following, wanted), reduction="none") * weight
        sign = torch.where(wanted == no, 1.0, -1.0)
        so_far = F.softplus(-sign * (logits[:, no] - logits[:, yes]))
        loss = (losses.sum() + a.inside_weight * so_far[inside].sum()) / (weight.sum() + 1)
        if a.carry:
            known = F.cross_entropy(read[:, : config.vocab_size], inputs)
            following_read = (F.cross_entropy(read[:, config.vocab_size :], following, reduction="none") * weight).sum() / (weight.sum() + 1)
            loss = loss + a.carry * (known + following_read)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        done = step - first_step
        warm = min(1.0, (step + 1) / 100)
        factor = warm * (1 - done / a.decay_steps if a.decay_steps else 1.0)
        if a.decay_minutes:
            factor *= max(0.0, 1 - (time.time() - start) / 60 / a.decay_minutes)
            if factor == 0.0:
                break
        muon.step(a.lr * factor)
        for g in adam.param_groups:
            g["lr"] = a.adam_lr * factor
        adam.step()
        adam.zero_grad(set_to_none=True)
        if a.carry:
            readout_adam.step()
            readout_adam.zero_grad(set_to_none=True)
        step += 1
        seen += ids.numel()
        since_tokens += ids.numel()
        with torch.no_grad():
            right = torch.where(inside, (logits[:, no] > logits[:, yes]) == (wanted == no), logits.argmax(-1) == wanted)
            name_in = (inputs >= names[0]) & (inputs < names[1])
            digit_out = (wanted >= digits[0]) & (wanted < digits[1])
            parts = {
                "lookup": (kinds == solve) & name_in & digit_out,
                "copy": (kinds == solve) & ~digit_out,
                "recall": kinds == recall,
                "check": inside & (kinds == check) & (wanted == yes),
                "checkno": inside & (kinds == check) & (wanted == no),
                "judge": inside & (kinds == judge) & (wanted == yes),
                "judgeno": inside & (kinds == judge) & (wanted == no),
                "verdict": (kinds == judge) & (inputs == verdict),
            }
            for key, part in parts.items():
                s = stats.setdefault(key, [0, 0])
                s[0] += right[part].sum().item()
                s[1] += part.sum().item()
            if a.carry:
                s = stats.setdefault("known", [0, 0])
                s[0] += (read[:, : config.vocab_size].argmax(-1) == inputs).sum().item()
                s[1] += len(inputs)
                s = stats.setdefault("following", [0, 0])
                s[0] += (read[:, config.vocab_size :].argmax(-1) == following).sum().item()
                s[1] += len(inputs)
            s = stats.setdefault("loss", [0.0, 0])
            s[0] += loss.item()
            s[1] += 1
        if step % a.log == 0:
            now = time.time()
            text = " ".join(f"{k} {s[0] / max(s[1], 1):.4f}" for k, s in stats.items())
            print(f"step {step} tokens {seen / 1e6:.2f}M {since_tokens / (now - since):.0f} tok/s "
                  f"{(now - start) / 60:.1f} min {text}", flush=True)
            stats, since, since_tokens = {}, now, 0
        if time.time() - last_save > a.save_minutes * 60:
            last_save = time.time()
            save(a, config, new_layers, model, muon, adam, step, seen, taken0 + taken, seconds0 + time.time() - start)
    save(a, config, new_layers, model, muon, adam, step, seen, taken0 + taken, seconds0 + time.time() - start)
    print("done", flush=True)


def save(a, config, new_layers, model, muon, adam, step, seen, taken, seconds):
    os.makedirs(a.out, exist_ok=True)
    state = dict(config=vars(config), model=model.state_dict(), muon=muon.state_dict(), adam=adam.state_dict(),
                 step=step, seen=seen, new_layers=new_layers, taken=taken, seconds=seconds)
    path = os.path.join(a.out, "checkpoint.pt")
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    print(f"saved step {step} tokens {seen} seconds {seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
