"""The decoder, Qwen3-style (RMSNorm, rotate-half RoPE, q/k norm, GQA, SwiGLU, tied embeddings), for training on CPU.

Names of parameters are those of Hugging Face `Qwen3ForCausalLM`, so that the state dict can be saved as it is.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 136
    hidden_size: int = 128
    intermediate_size: int = 320
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1280


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def linear(x, module):
    return F.linear(x, module.weight.to(x.dtype))


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, q, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)
        self.q_norm = Norm(c.head_dim, c.rms_norm_eps)
        self.k_norm = Norm(c.head_dim, c.rms_norm_eps)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        c = self.c
        q = linear(x, self.q_proj).view(b, t, c.num_attention_heads, c.head_dim).transpose(1, 2)
        k = linear(x, self.k_proj).view(b, t, c.num_key_value_heads, c.head_dim).transpose(1, 2)
        v = linear(x, self.v_proj).view(b, t, c.num_key_value_heads, c.head_dim).transpose(1, 2)
        q = rotate(self.q_norm(q).float(), cos, sin)
        k = rotate(self.k_norm(k).float(), cos, sin)
        v = v.float()
        group = c.num_attention_heads // c.num_key_value_heads
        k = k.repeat_interleave(group, 1)
        v = v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.to(x.dtype).transpose(1, 2).reshape(b, t, -1)
        return linear(y, self.o_proj)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return linear(F.silu(linear(x, self.gate_proj)) * linear(x, self.up_proj), self.down_proj)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Mlp(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        inv = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings).float(), inv)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        for layer in self.layers:
            layer.self_attn.o_proj.weight.data *= 0.3
            layer.mlp.down_proj.weight.data *= 0.3

    def hidden(self, ids, dtype=torch.float32, tap=None):
        """Normed states `[batch, position, hidden]`; with `tap` also the states, not normed, before that layer."""
        x = self.embed_tokens(ids).to(dtype)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for i, layer in enumerate(self.layers):
            if i == tap:
                tapped = x
            x = layer(x, cos, sin)
        return self.norm(x) if tap is None else (self.norm(x), tapped)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()
