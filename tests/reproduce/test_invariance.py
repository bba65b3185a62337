"""`invariance`: every variation happens and changes nothing; a server that differs is seen."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.reproduce import invariance
from octavo.reproduce.claim import NoProgress, Options
from octavo.reproduce.invariance import QUICK, measure
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving


def test_variations_change_nothing(tiny_folder: Path) -> None:
    sizes = dataclasses.replace(QUICK, tight=9, max_tokens=24)
    found = measure(Options(model=str(tiny_folder)), sizes, NoProgress())
    assert found.identical_outputs and found.is_reached
    (table,) = found.tables
    proofs = {str(row[0]): str(row[3]) for row in table.rows}
    assert len({row[2] for row in table.rows}) == 1 and len(table.rows) >= 9
    assert "Not shown" not in found.explanation, proofs
    assert proofs["prompts in chunks of 16 tokens"] == "5 prompts cut"


def test_a_difference_is_seen(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = invariance._outputs

    def other(*args: Any, is_alone: bool) -> Any:
        outputs = plain(*args, is_alone=is_alone)
        if not is_alone:
            outputs[2].outputs[0].token_ids[0] ^= 1
            for token, listed in zip(outputs[2].outputs[0].token_ids,
                                     outputs[2].outputs[0].logprobs or [], strict=True):
                assert listed is not None
                listed.setdefault(token, next(iter(listed.values())))
        return outputs

    monkeypatch.setattr(invariance, "_outputs", other)
    found = measure(Options(model=str(tiny_folder)), QUICK, NoProgress())
    assert found.identical_outputs is False and not found.is_reached
    assert all(row[1] == (0 if i == 0 else 1) for i, row in enumerate(found.tables[0].rows))


def test_a_server_is_asked() -> None:
    with serving(fake_async_llm(max_model_len=4096, num_blocks=2048)) as client:
        for url in (client.base_url, client.base_url + "/v1/"):
            found = invariance.run(Options(model="", url=url, quick=True), NoProgress())
            assert found.is_reached and len(found.tables[0].rows) == 6
            assert len({row[3] for row in found.tables[0].rows}) == 1


def test_no_server() -> None:
    with pytest.raises(ConfigError, match="is a server running there"):
        invariance.run(Options(model="", url="http://127.0.0.1:9", quick=True), NoProgress())
