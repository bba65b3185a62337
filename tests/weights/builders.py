"""Tiny random models, as GGUF files and Hugging Face folders, for the tests of octavo.weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from octavo.weights.gguf_write import TensorToWrite, write_gguf
from octavo.weights.quantize import quantize, storable_type, to_bf16
from octavo.weights.safetensors import write_safetensors

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 40, 64, 4, 2, 16, 96, 2
Tensors = dict[str, np.ndarray]


def gguf_metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Sound metadata. A change's "__" stands for "." behind the architecture; None removes."""
    values: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    tokens = [f"t{i}" for i in range(VOCAB - 2)] + ["<|im_end|>", "<|endoftext|>"]
    metadata = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": v for key, v in values.items() if v is not None},
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (VOCAB - 2) + [3, 3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": VOCAB - 2,
    }
    return metadata


def gguf_tensors(*, bias: bool = False, qk_norm: bool = False, head: bool = False) -> Tensors:
    """Random float32 tensors under GGUF names."""
    random = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        shapes |= {
            f"{at}.attn_norm.weight": (HIDDEN,),
            f"{at}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{at}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{at}.ffn_norm.weight": (HIDDEN,),
            f"{at}.ffn_gate.weight": (INNER, HIDDEN),
            f"{at}.ffn_up.weight": (INNER, HIDDEN),
            f"{at}.ffn_down.weight": (HIDDEN, INNER),
        }
        if bias:
            shapes |= {f"{at}.attn_q.bias": (HEADS * HEAD_DIM,)}
            shapes |= {f"{at}.attn_{p}.bias": (KV_HEADS * HEAD_DIM,) for p in "kv"}
        if qk_norm:
            shapes |= {f"{at}.attn_{p}_norm.weight": (HEAD_DIM,) for p in "qk"}
    shapes["output_norm.weight"] = (HIDDEN,)
    if head:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def save_gguf(path: Path, metadata: dict[str, Any], tensors: Tensors, quant: str = "F32") -> Path:
    """Write matrices in `quant` (or its stand-in), vectors in F32."""
    to_write = []
    for name, values in tensors.items():
        rows = values.reshape(-1, values.shape[-1])
        chosen = storable_type(quant, values.shape[-1]) if values.ndim == 2 else "F32"
        to_write.append(
            TensorToWrite(
                name, values.shape, chosen, lambda rows=rows, chosen=chosen: quantize(rows, chosen)
            )
        )
    write_gguf(path, metadata=metadata, tensors=to_write)
    return path


def hf_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A sound config.json. A change to None removes the key."""
    config = {
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "bos_token_id": 1,
    } | changes
    return {key: value for key, value in config.items() if value is not None}


def hf_tensors(**kinds: bool) -> Tensors:
    """The tensors of `gguf_tensors` under Hugging Face names (rows as they are)."""
    from octavo.weights.tensor_names import canonical_from_gguf, hf_from_canonical

    return {
        hf_from_canonical(canonical_from_gguf(name) or ""): values
        for name, values in gguf_tensors(**kinds).items()
    }


def save_safetensors(path: Path, tensors: Tensors, dtype: str = "F32") -> None:
    """Write one file with every tensor in `dtype`."""
    cast = {"F32": lambda v: v, "F16": lambda v: v.astype(np.float16), "BF16": to_bf16}[dtype]
    write_safetensors(path, {n: (dtype, v.shape, cast(v)) for n, v in tensors.items()})


def save_folder(
    folder: Path,
    config: dict[str, Any],
    tensors: Tensors,
    *,
    dtype: str = "F32",
    generation: dict[str, Any] | None = None,
) -> Path:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    save_safetensors(folder / "model.safetensors", tensors, dtype)
    return folder


def save_index(folder: Path, weight_map: dict[str, Any]) -> None:
    """Write the index of a sharded folder."""
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
