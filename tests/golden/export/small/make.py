"""Small random models and their golden passes. Usage: make.py OUT"""
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from transformers import (MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, LlamaConfig, LlamaForCausalLM)
out = Path(sys.argv[1])
base = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
            vocab_size=96, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, attn_implementation="eager")
yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
models = {
    "mistral": (MistralForCausalLM, MistralConfig(**base, head_dim=12, sliding_window=7)),
    "phi3": (Phi3ForCausalLM, Phi3Config(**base, sliding_window=9)),
    "phi3-longrope": (Phi3ForCausalLM, Phi3Config(**base, sliding_window=None, original_max_position_embeddings=32,
        rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 1.9], long_factor=[2.0, 2.5, 3.0, 4.0]))),
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config(**base, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "llama-yarn": (LlamaForCausalLM, LlamaConfig(**base, rope_scaling=yarn, rope_theta=500.0)),
    "llama-linear": (LlamaForCausalLM, LlamaConfig(**base, rope_scaling=dict(rope_type="linear", factor=4.0))),
}
for index, (name, (cls, config)) in enumerate(models.items()):
    torch.manual_seed(index)
    model = cls(config).eval().float()
    with torch.no_grad():
        for pname, p in model.named_parameters():
            if "norm" in pname: p.uniform_(0.6, 1.4)
            elif pname.endswith("bias"): p.uniform_(-0.5, 0.5)
            else: p.uniform_(-0.35, 0.35)
    folder = out / name
    model.save_pretrained(folder)
    ids = torch.tensor([[(i * 37 + 11 + index) % 96 for i in range(24)]])
    with torch.no_grad():
        r = model(ids, output_hidden_states=True, use_cache=False)
        hidden = torch.stack([h[0] for h in r.hidden_states[:-1]])  # embedding, after layers 0..L-2
        greedy = ids.clone()
        for _ in range(6):
            nxt = model(greedy, use_cache=False).logits[0, -1].argmax()
            greedy = torch.cat([greedy, nxt.view(1, 1)], dim=1)
    save_file({"input_ids": ids[0].int().contiguous(), "logits": r.logits[0].contiguous(), "hidden_states": hidden.contiguous(),
               "greedy_ids": greedy[0, 24:].int().contiguous()}, folder / "golden.safetensors")
    print(name, r.logits.abs().max().item(), greedy[0, 24:].tolist(), (folder/"config.json").read_text()[:2000])
