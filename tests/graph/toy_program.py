"""The toy model (octavo/testing/toy_model.py) as a plain dense program, written from its
description: float64, whole sequences, loops. It shares no code with graph or backends."""

import numpy as np

from octavo.testing.toy_model import ToyShape


def toy_logits(
    tensors: dict[str, np.ndarray], shape: ToyShape, token_ids: list[int]
) -> np.ndarray:
    """[n, vocab] logits of every position."""
    w = {name: values.astype(np.float64) for name, values in tensors.items()}
    x = w["embed"][token_ids] * 2.0
    for layer in ("0", "1"):
        x = x + 0.5 * attention(w, shape, layer, x)
        x = x + experts(w, shape, layer, x)
    x = rms(x, shape.eps) * (w["norm"] + 1.0)
    return shape.logit_cap * np.tanh((x @ w["embed"].T) / shape.logit_cap)


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def rotate(head: np.ndarray, position: int, shape: ToyShape, layer: str) -> np.ndarray:
    """One head of one row, as complex numbers."""
    pairs = shape.rope_dim // 2
    theta = shape.thetas[int(layer)]
    angles = position * theta ** (-2.0 * np.arange(pairs) / shape.rope_dim)
    turned = head.copy()
    if layer == "0":  # neighbours
        z = (head[0 : 2 * pairs : 2] + 1j * head[1 : 2 * pairs : 2]) * np.exp(1j * angles)
        turned[0 : 2 * pairs : 2], turned[1 : 2 * pairs : 2] = z.real, z.imag
    else:  # halves
        z = (head[:pairs] + 1j * head[pairs : 2 * pairs]) * np.exp(1j * angles)
        turned[:pairs], turned[pairs : 2 * pairs] = z.real, z.imag
    return turned


def attention(
    w: dict[str, np.ndarray], shape: ToyShape, layer: str, x: np.ndarray
) -> np.ndarray:
    n = x.shape[0]
    centred = x - x.mean(-1, keepdims=True)
    h = rms(centred, shape.eps) * w[f"{layer}.norm1"] + w[f"{layer}.norm1_bias"]
    q = (h @ w[f"{layer}.q"].T).reshape(n, shape.heads, shape.k_dim)
    k = (h @ w[f"{layer}.k"].T).reshape(n, shape.kv_heads, shape.k_dim)
    v = (h @ w[f"{layer}.v"].T).reshape(n, shape.kv_heads, shape.v_dim)
    q = rms(q, shape.eps) * w[f"{layer}.q_norm"]
    out = np.zeros((n, shape.heads, shape.v_dim))
    for head in range(shape.heads):
        kv_head = head * shape.kv_heads // shape.heads
        keys = np.stack([rotate(k[t, kv_head], t, shape, layer) for t in range(n)])
        for t in range(n):
            query = rotate(q[t, head], t, shape, layer)
            first = max(0, t - shape.window + 1) if layer == "0" else 0
            scores = 0.7 * keys[first : t + 1] @ query
            if layer == "0":
                scores = shape.score_cap * np.tanh(scores / shape.score_cap)
                rest = 0.0
            else:
                rest = np.exp(w["1.sinks"][head])
            weights = np.exp(scores)
            weights /= weights.sum() + rest
            out[t, head] = weights @ v[first : t + 1, kv_head]
    return out.reshape(n, -1) @ w[f"{layer}.o"].T


def experts(w: dict[str, np.ndarray], shape: ToyShape, layer: str, x: np.ndarray) -> np.ndarray:
    h = rms(x, shape.eps) * w[f"{layer}.norm2"]
    gate = w[f"{layer}.gate"].reshape(shape.experts, shape.inner, shape.hidden)
    up = w[f"{layer}.up"].reshape(shape.experts, shape.inner, shape.hidden)
    down = w[f"{layer}.down"].reshape(shape.experts, shape.hidden, shape.inner)
    down_bias = w[f"{layer}.down_bias"].reshape(shape.experts, shape.hidden)
    out = np.zeros_like(x)
    for t in range(x.shape[0]):
        logits = w[f"{layer}.router"] @ h[t]
        if layer == "0":
            score = np.exp(logits) / np.exp(logits).sum()
            chosen = sorted(range(shape.experts), key=lambda e: -score[e])[: shape.top_k]
            total = 1.0
        else:
            score = 1.0 / (1.0 + np.exp(-logits))
            biased = score + w["1.router_bias"]
            chosen = sorted(range(shape.experts), key=lambda e: -biased[e])[: shape.top_k]
            total = score[chosen].sum()
        for expert in chosen:
            a = gate[expert] @ h[t]
            a = 0.5 * a * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (a + 0.044715 * a**3)))
            y = down[expert] @ (a * (up[expert] @ h[t])) + down_bias[expert]
            out[t] += score[expert] / total * y
    return out
