"""Makes tests/golden/: tiny random models with real architectures, and the logits of another
implementation for them.

Needs torch and transformers (made with torch 2.13.0 and transformers 5.24.0), which are no
dependency of Octavo: install them in an environment of their own, then
    python tools/make_goldens.py [tests/golden]
Each folder is a Hugging Face model (config.json, model.safetensors in float32) plus logits.npz:
token_ids [n] int32 and logits [n, vocab] float32 of one prompt, for every position.

Weights are drawn so that the test can tell models apart: attention is peaked, hidden values are
small enough for eps to count, and logits span SPAN or more. The script fails where they do not.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

SPAN = 5.0  # least (max - min) of the logits of any position
PEAK = 0.5  # least mean, over rows and heads, of the largest attention weight
MAX_BYTES = 1 << 20  # of one folder

COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# name -> (architecture, config on top of COMMON, prompt length)
MODELS: dict[str, tuple[str, dict, int]] = {
    "llama": ("Llama", {"rope_parameters": PLAIN_ROPE, "tie_word_embeddings": True}, 120),
    "llama3_rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}, 200),
    "mistral": ("Mistral", {"rope_parameters": PLAIN_ROPE, "sliding_window": 24}, 120),
    "qwen2": ("Qwen2", {"rope_parameters": PLAIN_ROPE, "rms_norm_eps": 1e-6}, 120),
    "qwen3": ("Qwen3", {"rope_parameters": PLAIN_ROPE, "head_dim": 32, "rms_norm_eps": 1e-6}, 120),
}


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden")
    for seed, (name, (architecture, settings, length)) in enumerate(MODELS.items()):
        config = getattr(transformers, f"{architecture}Config")(**{**COMMON, **settings})
        model = getattr(transformers, f"{architecture}ForCausalLM")(config).float().eval()
        draw_weights(model, seed)
        write(root / name, model, seed, length)


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Fills every parameter; scales by name say what makes the logits tell models apart."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            values = 2.0 + 0.5 * noise  # scores grow with the square of these
        elif name.endswith("norm.weight"):
            values = 1.0 + 0.2 * noise
        elif name.endswith("embed_tokens.weight"):
            # Untied, small enough for eps to be felt; tied, large enough for the span of logits.
            values = (0.2 if model.config.tie_word_embeddings else 0.05) * noise
        elif name.endswith("lm_head.weight"):
            values = 0.2 * noise
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            values = 0.25 * noise  # each component of q and k then is about 2
        elif name.endswith("bias"):
            values = 0.5 * noise
        elif name.endswith("o_proj.weight"):
            values = 0.05 * noise
        else:
            values = 0.1 * noise
        with torch.no_grad():
            parameter.copy_(values)


def write(folder: Path, model: torch.nn.Module, seed: int, length: int) -> None:
    """Saves the model and its logits, after checking that they are worth comparing."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(3, model.config.vocab_size, length, dtype=np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # Peaked attention amplifies rounding errors; in float64 those of this side mostly vanish.
    model.double()
    with torch.no_grad():
        out = model(torch.from_numpy(token_ids).long()[None], output_attentions=True)
    logits = out.logits[0].numpy().astype(np.float32)
    span = float(np.ptp(logits, axis=1).min())
    peak = min(float(layer[0, :, 16:].max(-1).values.mean()) for layer in out.attentions)
    print(f"{folder.name}: least span {span:.2f}, mean largest attention weight {peak:.2f}")
    if span < SPAN or peak < PEAK:
        raise SystemExit(f"{folder.name}: logits or attention are too flat to tell models apart")
    np.savez(folder / "logits.npz", token_ids=token_ids, logits=logits)
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size >= MAX_BYTES:
        raise SystemExit(f"{folder.name}: {size} bytes, more than {MAX_BYTES}")


if __name__ == "__main__":
    main()
