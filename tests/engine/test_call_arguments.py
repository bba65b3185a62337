"""What generate() and chat() may be given, and how the rest is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.engine.call_arguments import (
    check_num_samples,
    conversation_list,
    params_list,
    priority_list,
    prompt_list,
)
from octavo.errors import InvalidRequestError

ONE = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
MESSAGE = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(tiny_folder, max_model_len=64, num_blocks=16) as llm:
        yield llm


@pytest.mark.parametrize("prompts", [
    [1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3]), np.array([1, 2, 3], np.uint8),
    list(np.array([1, 2, 3])), iter([1, 2, 3]), [np.int32(1), 2, np.uint64(3)],
    [[1, 2, 3]], [np.array([1, 2, 3])], np.array([[1, 2, 3]]), {"prompt_token_ids": [1, 2, 3]},
    {"prompt_token_ids": np.array([1, 2, 3])}, [{"prompt_token_ids": (1, 2, 3)}],
])
def test_integers_of_any_type_are_one_prompt(llm: LLM, prompts: Any) -> None:
    (out,) = llm.generate(prompts, ONE)
    assert out.prompt_token_ids == [1, 2, 3]
    assert all(type(i) is int for i in out.prompt_token_ids)


def test_many_prompts_in_many_forms(llm: LLM) -> None:
    rows = llm.generate(np.array([[1, 2], [3, 4]]), ONE)
    assert [o.prompt_token_ids for o in rows] == [[1, 2], [3, 4]]
    given: list[Any] = ["ab", np.array([97, 98]), {"prompt": "ab"}]
    mixed = llm.generate((p for p in given), ONE)
    assert len({tuple(o.prompt_token_ids) for o in mixed}) == 1 and len(mixed) == 3
    assert [o.prompt for o in llm.generate(np.array(["a", "b"]), ONE)] == ["a", "b"]
    assert llm.generate([]) == [] == llm.generate(())
    chats = llm.chat(([MESSAGE] for _ in range(2)), ONE)
    assert [o.prompt for o in chats] == ["user: hi\nassistant:"] * 2
    assert llm.chat((MESSAGE,), ONE)[0].prompt == chats[0].prompt


@pytest.mark.parametrize("call, said", [
    (lambda llm: llm.generate(None), "prompts is None: give text"),
    (lambda llm: llm.generate(5), "prompts is an int"),
    (lambda llm: llm.generate(np.array(5)), "prompts is a ndarray"),
    (lambda llm: llm.generate({"a"}), "prompts is a set"),
    (lambda llm: llm.generate(b"abc"), "prompts is a bytes: decode it"),
    (lambda llm: llm.generate([b"abc"]), "the prompt is bytes: decode it"),
    (lambda llm: llm.generate({"prompt_token_ids": bytearray(b"a")}), "is bytearray: decode it"),
    (lambda llm: llm.generate({"prompt_token_ids": {1: 2}}), "neither text nor"),
    (lambda llm: llm.generate({"prompt_token_ids": "12"}), "neither text nor"),
    (lambda llm: llm.generate([None]), "neither text nor"),
    (lambda llm: llm.generate([1, "a"]), "neither text nor"),
    (lambda llm: llm.generate(np.ones(3)), "neither text nor"),
    (lambda llm: llm.generate(np.ones((2, 2, 2), int)), "neither text nor"),
    (lambda llm: llm.generate(np.array([], int)), "the prompt is empty"),
    (lambda llm: llm.generate([True, False]), "true or false"),
    (lambda llm: llm.generate("p", 5), "sampling_params is an int: give one SamplingParams"),
    (lambda llm: llm.generate("p", (p for p in [ONE])), "sampling_params is a generator"),
    (lambda llm: llm.generate("p", "hot"), "sampling_params is a str"),
    (lambda llm: llm.generate(["a", "b"], {"temperature": 0}), r"give SamplingParams\(\.\.\.\)"),
    (lambda llm: llm.generate(["a"], [{}]), r"sampling_params\[0\] is a dict"),
    (lambda llm: llm.generate(["a", "b"], [ONE]), "1 entries for 2"),
    (lambda llm: llm.generate(["a"], priority=5), "priority is an int"),
    (lambda llm: llm.generate(["a"], priority=["x"]), "priority is a str"),
    (lambda llm: llm.generate(["a"], priority=[1.5]), "priority is a float"),
    (lambda llm: llm.generate(["a"], priority=[1, 2]), "2 entries for 1"),
    (lambda llm: llm.generate(["a"], priority=[2**31]), "priority is 2147483648"),
    (lambda llm: llm.generate("\ud800"), "surrogate"),
    (lambda llm: llm.chat(None), "messages is None"),
    (lambda llm: llm.chat("hi"), "messages is a str"),
    (lambda llm: llm.chat(MESSAGE), "messages is a dict"),
    (lambda llm: llm.chat([]), "messages is empty"),
    (lambda llm: llm.chat([5]), r"messages\[0\] is an int"),
    (lambda llm: llm.chat([[MESSAGE], MESSAGE]), r"messages\[1\] is a dict"),
    (lambda llm: llm.chat([MESSAGE], tools=5), "tools is a int"),
    (lambda llm: llm.chat([MESSAGE], chat_template_kwargs=5), "chat_template_kwargs is a int"),
])
def test_misuse_is_one_typed_line_and_runs_nothing(
        llm: LLM, call: Callable[[Any], Any], said: str) -> None:
    before = llm.stats().num_steps
    with pytest.raises(InvalidRequestError, match=said) as caught:
        call(llm)
    assert "\n" not in caught.value.message
    assert llm.stats().num_steps == before


def test_the_helpers_give_plain_lists() -> None:
    assert prompt_list("ab") == ["ab"] and prompt_list([[1], [2]]) == [[1], [2]]
    assert params_list(ONE, 3) == [ONE] * 3 and params_list((ONE, ONE), 2) == [ONE] * 2
    assert priority_list(None, 2) == [0, 0]
    plain = priority_list(np.array([3, -1]), 2)
    assert plain == [3, -1] and type(plain[0]) is int
    assert conversation_list([MESSAGE]) == [[MESSAGE]]


def test_more_samples_than_may_ever_wait(tiny_folder: Path) -> None:
    check_num_samples([SamplingParams(n=5)], 5)
    with LLM(tiny_folder, max_model_len=64, num_blocks=16, max_num_seqs=2) as llm:
        assert llm.max_num_samples == 2 + 4096
        object.__setattr__(llm.config.scheduler, "max_num_waiting", 3)
        with pytest.raises(InvalidRequestError, match=r"n is 6: .* 5 samples"):
            llm.generate(["a", "b"], [ONE, SamplingParams(n=6)])
        assert llm.stats().num_steps == 0
        (out,) = llm.generate("a", SamplingParams(n=5, max_tokens=1))
        assert len(out.outputs) == 5


def test_an_unknown_sampling_parameter_is_named() -> None:
    with pytest.raises(TypeError, match="output_kind"):
        SamplingParams(output_kind=1)  # type: ignore[call-arg]
