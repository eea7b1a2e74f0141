"""Writes a checkpoint as Hugging Face files (f16), and compares with `transformers` if asked to."""

import argparse
import json
import os
import subprocess

import torch
from safetensors.torch import load_file, save_file

from evaluate import load

END, PAD = 1, 0


def config_of(c):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": c.num_hidden_layers,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "torch_dtype": "float16",
    }


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generator", required=True)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--check", type=int, default=0)
    a = p.parse_args()
    model, _ = load(a.checkpoint)
    os.makedirs(a.out, exist_ok=True)
    state = {("" if k.startswith("lm_head") else "model.") + k: v.half().contiguous() for k, v in model.state_dict().items()}
    weights = os.path.join(a.out, "model.safetensors")
    save_file(state, weights, metadata={"format": "pt"})
    os.chmod(weights, 0o644)
    dump(os.path.join(a.out, "config.json"), config_of(model.c))
    dump(os.path.join(a.out, "generation_config.json"),
         {"do_sample": False, "eos_token_id": END, "pad_token_id": PAD, "max_new_tokens": 700})
    with open(os.path.join(a.out, "tokenizer.json"), "wb") as f:
        f.write(subprocess.run([a.generator, "tokenizer"], capture_output=True, check=True).stdout)
    dump(os.path.join(a.out, "tokenizer_config.json"),
         {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>",
          "clean_up_tokenization_spaces": False, "model_max_length": model.c.max_position_embeddings})
    if a.check:
        check(a.out, model)


def dump(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


@torch.no_grad()
def check(out, model):
    """Largest difference of logits: Hugging Face against this code, same f16 weights; and f16 against f32 weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    text = ("solve : let J = 1 ; let z = 9 ; let C = z + 5 ; let P = 0 ; let v = J - z ; let Z = z + 7 ; let M = z - C ; "
            "let h = M - P ; find v ? work :")
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert ids.shape[1] == len(text.split()), (ids.shape, len(text.split()))
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    answer = theirs.generate(ids, max_new_tokens=120, do_sample=False)
    print(tokenizer.decode(answer[0]))
    full = model.logits(model.hidden(answer))
    stored = load_file(os.path.join(out, "model.safetensors"))
    for name, value in model.state_dict().items():
        value.copy_(stored["model." + name].float())
    ours = model.logits(model.hidden(answer))
    hf = theirs(answer).logits
    print("largest |logit|", ours.abs().max().item())
    print("HF vs training code, same f16 weights in f32 arithmetic:", (hf - ours).abs().max().item())
    print("f16 weights vs f32 weights:", (full - ours).abs().max().item())


if __name__ == "__main__":
    main()
