"""Arguments of LLM and AsyncLLM that are none, or that name nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, SamplingParams
from octavo.engine.load_arguments import model_argument, refuse_unknown, template_argument
from octavo.errors import ConfigError, EngineDeadError, InvalidRequestError

VLLM_ONLY = {
    "dtype": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
    "gpu_memory_utilization": 0.9, "trust_remote_code": False, "tokenizer": None,
    "enforce_eager": True, "disable_log_stats": True, "swap_space": 4,
}


@pytest.mark.parametrize("door", [LLM, AsyncLLM])
@pytest.mark.parametrize("name", VLLM_ONLY)
def test_arguments_that_only_vllm_has_say_what_to_do_here(door: Any, name: str) -> None:
    value = VLLM_ONLY[name]
    with pytest.raises(ConfigError, match=rf"^{name} is {value!r}: .*(leave it out|give)") as found:
        door("smollm2-135m", **{name: value})
    assert found.value.param == name and "\n" not in found.value.message


@pytest.mark.parametrize("door", [LLM, AsyncLLM])
def test_a_misspelt_argument_names_its_neighbour(door: Any) -> None:
    with pytest.raises(ConfigError, match="no such argument; did you mean max_model_len"):
        door("smollm2-135m", max_modellen=5)
    with pytest.raises(ConfigError, match=r"^frobnicate is 5: .*leave it out"):
        door("smollm2-135m", frobnicate=5)


def test_nothing_unknown_is_nothing_to_refuse() -> None:
    refuse_unknown({}, LLM.__init__)


@pytest.mark.parametrize("model", [None, "", "  ", 5, b"x", [], True])
def test_a_model_must_be_named(model: Any) -> None:
    for door in (LLM, AsyncLLM, lambda m: AsyncLLM.from_engine_args(EngineArgs(model=m))):
        with pytest.raises(ConfigError, match=r"^model is .*: give an alias") as caught:
            door(model)
        assert caught.value.param == "model"


def test_paths_are_names(tmp_path: Path) -> None:
    assert model_argument(tmp_path) == str(tmp_path)
    file = tmp_path / "t.jinja"
    file.write_text("x")
    assert template_argument(file) == template_argument(str(file)) == str(file)
    assert template_argument(None) is None


@pytest.mark.parametrize("template, said", [
    ("nope", "^chat_template 'nope': no such file"), (5, "^chat_template is 5: "),
    ("", "^chat_template is ''"), ("a\0b", "no such file"), ("/", "'/': a folder"),
])
def test_a_bad_chat_template_is_named_as_in_python(
        tiny_folder: Path, template: Any, said: str) -> None:
    for door in (LLM, AsyncLLM):
        with pytest.raises(ConfigError, match=said) as caught:
            door(tiny_folder, chat_template=template)
        assert "--" not in caught.value.message


def test_a_template_that_does_not_parse_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for")
    with pytest.raises(ConfigError, match=f"^chat_template '{broken}': chat template does not"):
        LLM(tiny_folder, chat_template=broken)
    broken.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=f"^chat_template '{broken}': "):
        LLM(tiny_folder, chat_template=broken)


def test_from_engine_args(tiny_folder: Path) -> None:
    async def test() -> None:
        args = EngineArgs(model=str(tiny_folder), max_model_len=64, num_blocks=16)
        llm = AsyncLLM.from_engine_args(args, engine="inproc")
        assert (await llm.wait_ready()).max_model_len == 64
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        outputs = [o async for o in llm.generate("a", params, "r", output_kind="final")]
        assert len(outputs[0].outputs[0].token_ids) == 2
        for request_id in (5, None, "\ud800"):
            with pytest.raises(InvalidRequestError, match=r"request_id is .*: give text"):
                await anext(llm.generate("a", params, request_id))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="output_kind is 'all'"):
            await anext(llm.generate("a", params, "r", output_kind="all"))  # type: ignore[arg-type]
        assert llm.max_num_samples == 64 + 4096
        await llm.shutdown()
        with pytest.raises(EngineDeadError, match="was shut down: make a new one"):
            await anext(llm.generate("a", params, "r"))

    asyncio.run(asyncio.wait_for(test(), 60))
    with pytest.raises(ConfigError, match="args is a dict"):
        AsyncLLM.from_engine_args({})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="engine is 'thread'"):
        AsyncLLM(tiny_folder, engine="thread")  # type: ignore[arg-type]
