"""LLM(quantization=...): the model that a converted file would give, named in config and cache."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.cli.main import main
from octavo.config_resolve import EngineArgs
from octavo.engine.factory import _namespace, resolve_args
from octavo.errors import ConfigError
from octavo.testing.toy_model import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(seed=1).save(tmp_path_factory.mktemp("quantization") / "tiny")


def logprobs(llm: LLM) -> np.ndarray:
    params = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=0, ignore_eos=True)
    with llm:
        (output,) = llm.generate([{"prompt_token_ids": list(range(20, 60))}], params,
                                 use_tqdm=False)
    assert output.prompt_logprobs is not None
    return np.array([next(iter(row.values())).logprob for row in output.prompt_logprobs if row])


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_weights_are_quantized(folder: Path, backend: str) -> None:
    found = {
        kind: logprobs(LLM(folder, quantization=kind, backend=backend, num_blocks=16,
                           max_model_len=128))
        for kind in (None, "int8", "int4")
    }
    spread = float(np.std(found[None]))
    int8, int4 = (float(np.sqrt(np.mean(np.square(found[kind] - found[None])))) / spread
                  for kind in ("int8", "int4"))
    assert 0 < int8 < 0.15
    assert 4 * int8 < int4 < 0.8  # random weights: four bits cost them more than trained ones


def test_it_is_told_and_kept_apart(folder: Path) -> None:
    resolution = resolve_args(EngineArgs(model=str(folder), quantization="int8"))
    assert resolution.config.model.quantization == "int8"
    assert any(line.startswith("weights int8: ") for line in resolution.lines)
    plain = dataclasses.replace(
        resolution.config, model=dataclasses.replace(resolution.config.model, quantization=None))
    assert _namespace(plain) != _namespace(resolution.config)
    assert not any("weights int" in line
                   for line in resolve_args(EngineArgs(model=str(folder))).lines)


def test_info(folder: Path, model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(folder), "--quantization", "int4"]) == 0
    out = capsys.readouterr().out
    assert "q4+min (quantized at load)" in out and "q8 (quantized at load)" in out
    assert main(["info", str(model_path), "--quantization", "int8"]) == 1
    assert "--quantization is 'int8': the file is quantized already" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["gguf", "awq", "", 8])
def test_other_words_are_refused(folder: Path, wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"^quantization is .*give int8 or int4"):
        LLM(folder, quantization=wrong)  # type: ignore[arg-type]


def test_a_quantized_file_is_refused(model_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantized already \(Q4_1.*leave it out"):
        LLM(model_path, quantization="int8")
