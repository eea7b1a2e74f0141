"""A start for the two heads that everything else builds on: previous token (layer 0) and lookup (layer 1).

Attention heads that look up a name and copy what followed it form late from random weights; starting them
costs nothing and training is free to change them.
"""

import torch

FREE = 16  # residual dimensions at the end that embeddings do not use at first


@torch.no_grad()
def start_lookup(model):
    c = model.c
    d, h = c.hidden_size, c.head_dim
    half = h // 2
    embed = model.embed_tokens.weight
    embed[:, -FREE:] = 0.0
    embed[:, 0] = 0.3  # a direction that all tokens share
    for layer in model.layers:
        layer.self_attn.o_proj.weight *= 0.2
        layer.mlp.down_proj.weight *= 0.2
    identity = torch.linalg.qr(torch.randn(d - FREE - 1, FREE))[0].T  # [FREE, d - FREE - 1]

    # Layer 0, head 0: a constant query and a constant key turned by one position; only fast rotations tell
    # neighbours apart.
    first = model.layers[0].self_attn
    inv = c.rope_theta ** (-torch.arange(0, h, 2).float() / h)
    query, key = torch.zeros(h), torch.zeros(h)
    fast = torch.arange(3)
    query[fast] = 1.0
    key[fast] = inv[fast].cos()
    key[fast + half] = inv[fast].sin()
    first.q_proj.weight[:h] *= 0.05
    first.k_proj.weight[:h] *= 0.05
    first.q_proj.weight[:h, 0] = query
    first.k_proj.weight[:h, 0] = key
    for norm in (first.q_norm, first.k_norm):
        norm.weight[fast] = 2.0
        norm.weight[fast + half] = 2.0
    first.v_proj.weight[:FREE] = 0.0
    first.v_proj.weight[:FREE, 1 : d - FREE] = identity
    first.o_proj.weight[:, :FREE] = 0.0
    first.o_proj.weight[d - FREE :, :FREE] = 0.2 * torch.eye(FREE)

    # Layer 1, head 0: the current token's identity looks for the same identity one position before; slow
    # rotations only, so that distance does not matter. It writes the token found there.
    second = model.layers[1].self_attn
    slow = torch.cat((torch.arange(half - FREE // 2, half), torch.arange(h - FREE // 2, h)))
    second.q_proj.weight[:h] = 0.0
    second.k_proj.weight[:h] = 0.0
    for row, dim in enumerate(slow.tolist()):
        second.q_proj.weight[dim, 1 : d - FREE] = identity[row]
        second.k_proj.weight[dim, d - FREE + row] = 1.0
    for norm in (second.q_norm, second.k_norm):
        norm.weight[slow] = 2.0
    found = torch.linalg.qr(torch.randn(d - FREE - 1, h))[0].T
    second.v_proj.weight[:h] = 0.0
    second.v_proj.weight[:h, 1 : d - FREE] = found
    second.o_proj.weight[:, :h] = 0.0
    second.o_proj.weight[1 : d - FREE, :h] = 0.2 * found.T
