"""The set-ups that cases ask for: server options, and the files these need. No case is run here."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# 38 blocks of 16 tokens of SmolLM2-135M in int8: 608 tokens
_SMALL_KV_BYTES = 38 * 16 * 12240
_LLAMA3_BOS = 128000

_CHATML = (
    "{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\\n' }}}}{body}"
    "{{{{ '<|im_end|>\\n' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n' }}}}{{% endif %}}"
)
_CONTENT = "{{ m.content or '' }}"
TEMPLATES = {
    "B088": "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}"
            "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
            + _CHATML.format(body=_CONTENT),
    "B089": "<|im_start|>system\n{{ strftime_now('%d %B %Y %H:%M') }}<|im_end|>\n"
            + _CHATML.format(body=_CONTENT),
    "B090": _CHATML.format(
        body="{% if m.role == 'assistant' %}{% generation %}" + _CONTENT
             + "{% endgeneration %}{% else %}" + _CONTENT + "{% endif %}"),
    "B091": _CHATML.format(
        body=_CONTENT + "{% for call in m.tool_calls or [] %}"
             "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }} "
             "{% endfor %}{% endfor %}"),
}

# Loaded by the interpreter of the engine process: a step fails once a request whose prompt holds
# the marker's tokens has five tokens of output.
_FAULT = '''
import sys

if "octavo.engine.core_process" in sys.orig_argv:
    from octavo.scheduler.scheduler import Scheduler

    MARKER = {marker}
    whole = Scheduler.update_from_output

    def faulty(self, scheduler_output, runner_output):
        outputs = whole(self, scheduler_output, runner_output)
        for request in self._running:
            ids = request.token_ids
            prompt = ids[:request.num_prompt_tokens]
            if len(ids) - len(prompt) >= 5 and any(
                    prompt[i:i + len(MARKER)] == MARKER for i in range(len(prompt))):
                raise RuntimeError("an injected fault")
        return outputs

    Scheduler.update_from_output = faulty
'''


@dataclasses.dataclass(slots=True, frozen=True)
class Setup:
    """One server. `ids`: the cases it is for; None: all whose needs it has."""

    name: str
    have: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None
    model: str | None = None
    served_name: str = "SmolLM2-135M-Instruct"
    api_key: str | None = None
    python_path: str | None = None


def setups(model: str, folder: Path) -> Sequence[Setup]:
    """All of them, the plain server first. Files go to `folder`."""
    plain = ("--kv-cache-memory-bytes", "512m")
    made = [
        Setup("plain", frozenset({"tokenize", "cache_salt", "metrics", "baseline", "time"}), plain),
        Setup("small_kv", frozenset({"small_kv"}),
              ("--kv-cache-memory-bytes", str(_SMALL_KV_BYTES), "--max-model-len", "2048")),
        Setup("small_ctx", frozenset({"small_ctx"}), (*plain, "--max-model-len", "256")),
        Setup("api_key", frozenset({"api_key", "cors"}),
              (*plain, "--api-key", "secret", "--allowed-origins", "*"), api_key="secret"),
    ]
    for case_id, template in TEMPLATES.items():
        path = folder / f"{case_id}.jinja"
        path.write_text(template)
        made.append(Setup(f"template_{case_id}", frozenset({"custom_template"}),
                          (*plain, "--chat-template", str(path)), (case_id,)))
    made.append(Setup("llama3", frozenset({"llama3_template"}), plain,
                      model=str(_llama3_folder(folder / "llama3")), served_name="llama3"))
    fault = folder / "fault"
    fault.mkdir()
    (fault / "sitecustomize.py").write_text(_FAULT.format(marker=_tokens(model, "FAULT-AT-5")))
    made.append(Setup("fault", frozenset({"fault_injection"}), plain, python_path=str(fault)))
    return made


def _tokens(model: str, text: str) -> list[int]:
    from octavo.tokenizer.loading import load_tokenizer
    from octavo.weights.model_file import open_model

    with open_model(Path(model)) as opened:
        return list(load_tokenizer(opened).encode(text))


def _llama3_folder(folder: Path) -> Path:
    """A tiny random Llama with Llama 3's ids: BOS is 128000, which the tokenizer adds itself and
    the template writes, too."""
    import tokenizers
    from safetensors.numpy import load_file, save_file
    from tokenizers import processors

    from octavo.testing.byte_tokenizer import raw_byte_tokenizer
    from octavo.testing.toy_model import tiny_llama

    tiny_llama().save(folder)
    inner = json.loads(raw_byte_tokenizer().to_str())
    vocabulary = {t: i for t, i in inner["model"]["vocab"].items() if i < 256}
    vocabulary |= {f"unused{i}": i for i in range(256, _LLAMA3_BOS)}
    inner["model"]["vocab"] = vocabulary
    inner["added_tokens"] = []
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(inner))
    specials = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
        special_tokens=[("<|begin_of_text|>", _LLAMA3_BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = _LLAMA3_BOS + 16
    tensors = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = rng.standard_normal((size, tensors[name].shape[1]), np.float32) / 8
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": size, "bos_token_id": _LLAMA3_BOS, "eos_token_id": _LLAMA3_BOS + 3}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": specials[0], "eos_token": specials[3]}))
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
    return folder
