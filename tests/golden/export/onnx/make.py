"""Makes the exported graphs of this folder. Run once, by hand:

    pip install torch transformers onnx onnx_ir onnxruntime onnxruntime-genai==0.11.4
    python make.py

Random weights; norms and biases are not trivial. `golden.safetensors` holds what transformers gives for the
same weights (input_ids, logits, hidden_states), except for `int4`, where it holds what onnxruntime gives for the graph with products in f32 (accuracy_level 1).
"""

import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import torch
from safetensors.numpy import save_file
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=80, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MODELS = {
    "mistral-fp32": (MistralForCausalLM, MistralConfig(**SHAPE, head_dim=16, sliding_window=6), "fp32"),
    "qwen2-int4": (Qwen2ForCausalLM, Qwen2Config(**SHAPE | dict(hidden_size=64)), "int4"),
    "qwen3-fp32": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True), "fp32"),
}
IDS = [(7 * i * i + 3 * i + 5) % 80 for i in range(12)]

def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for name, (kind, config, precision) in MODELS.items():
        torch.manual_seed(len(name))
        model = kind(config).eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                value.copy_(torch.randn_like(value) * 0.25 + ("norm" in key))
            out = model(torch.tensor([IDS]))
        target = os.path.join(here, name)
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", folder, "-i", folder, "-o", target,
                            "-p", precision, "-e", "cpu", "-c", os.path.join(folder, "cache")], check=False)
        golden = {"input_ids": np.array(IDS, np.int32), "logits": out.logits[0].detach().numpy()}
        if precision == "fp32":

            save_file(golden, os.path.join(target, "golden.safetensors"))
            continue
        graph = onnx.load(os.path.join(target, "model.onnx"))
        for node in graph.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 1
        session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        feed = {"input_ids": np.array([IDS], np.int64), "attention_mask": np.ones((1, len(IDS)), np.int64)}
        for value in session.get_inputs():
            if value.name.startswith("past"):
                feed[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        golden["logits"] = session.run(["logits"], feed)[0][0]
        save_file(golden, os.path.join(target, "golden.safetensors"))

if __name__ == "__main__":
    main()
