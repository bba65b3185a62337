"""What the real model writes under a schema validates with an independent validator."""

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from octavo import LLM, SamplingParams
from octavo.engine.outputs import CompletionOutput
from tests.grammar.schemas import SCHEMAS

MAX_TOKENS = 1024


def draw(model_path: Path, names: Sequence[str], count: int) -> dict[str, list[CompletionOutput]]:
    """`count` outputs at temperature 1 for each schema, all in one batch."""
    with LLM(str(model_path), max_model_len=1536, max_num_seqs=32) as llm:
        prompts = [[{"role": "user", "content": f"Write one short JSON object: {name}."}]
                   for name in names]
        params = [SamplingParams(temperature=1.0, n=count, seed=index, max_tokens=MAX_TOKENS,
                                 structured_outputs={"json": SCHEMAS[name]})
                  for index, name in enumerate(names)]
        outputs = llm.chat(prompts, params, use_tqdm=False)
    return {name: output.outputs for name, output in zip(names, outputs)}


def check(drawn: dict[str, list[CompletionOutput]]) -> float:
    """Every output that ends by itself validates; returns the share of those."""
    ended = total = 0
    for name, outputs in drawn.items():
        validator = jsonschema.Draft202012Validator(
            SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for output in outputs:
            total += 1
            if output.finish_reason == "length":
                assert len(output.token_ids) == MAX_TOKENS
                continue
            assert output.finish_reason == "stop"
            ended += 1
            errors = list(validator.iter_errors(json.loads(output.text)))
            assert not errors, (name, output.text, errors)
    print(f"{ended} of {total} ended within {MAX_TOKENS} tokens")
    return ended / total


def test_the_schemas_are_fifty_and_valid() -> None:
    assert len(SCHEMAS) == 50
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_validator_can_tell() -> None:
    drawn = CompletionOutput(index=0, text='{"name":"x","age":121,"alive":true}', token_ids=[],
                             finish_reason="stop")
    with pytest.raises(AssertionError):
        check({"person": [drawn]})


def test_objects_of_five_schemas_validate(model_path: Path) -> None:
    names = ["unicode enum", "to itself", "any of", "patterns", "dates"]
    assert check(draw(model_path, names, 3)) >= 0.9


@pytest.mark.full
def test_objects_of_fifty_schemas_validate(model_path: Path) -> None:
    assert check(draw(model_path, list(SCHEMAS), 10)) >= 0.9
