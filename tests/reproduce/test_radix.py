"""`radix`: what each arm finds, and that all answer the same."""

import json
from pathlib import Path

import pytest

from octavo.reproduce.claim import NoProgress, Options
from octavo.reproduce.finding import Finding
from octavo.reproduce.radix import QUICK, run


@pytest.fixture(scope="module")
def finding(tiny_folder: Path) -> Finding:
    return run(Options(model=str(tiny_folder), quick=True), NoProgress())


def _hits(finding: Finding, workload: str) -> list[int]:
    found = [finding.facts[f"tokens found, {workload}, {arm}"]
             for arm in ("cache off", "exact match", "radix tree")]
    return [int(str(one)) for one in found]


def test_whole_entries_serve_turns_and_the_tree_serves_beginnings_too(finding: Finding) -> None:
    off, exact, radix = _hits(finding, "multi-turn")
    assert off == 0 < exact < radix  # the tree finds the system prompt of another chat
    for workload in ("few-shot", "shared system prompt"):
        off, exact, radix = _hits(finding, workload)
        assert off == exact == 0 < radix


def test_computed_and_found_make_up_the_prompts(finding: Finding) -> None:
    for table, name in zip(finding.tables, ("multi-turn", "few-shot", "shared system prompt"),
                           strict=True):
        totals = {int(str(row[2])) + hits
                  for row, hits in zip(table.rows, _hits(finding, name), strict=True)}
        assert len(totals) == 1


def test_every_turn_of_every_chat_is_asked(finding: Finding) -> None:
    assert finding.identical_outputs
    asked = finding.raw["ttft_s"]["multi-turn"]
    wanted = {f"{chat}-{turn}" for chat in range(QUICK.num_chats)
              for turn in range(QUICK.num_turns)}
    assert all(set(times) == wanted for times in asked.values())
    assert all(t > 0 for times in asked.values() for t in times.values())


def test_a_file_of_questions(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(
        json.dumps({"category": "a", "turns": [f"Question {i}?", f"And {i} then?"]}) + "\n"
        for i in range(4)))
    found = run(Options(model=str(tiny_folder), quick=True, data=path), NoProgress())
    assert str(found.facts["text"]).startswith("questions.jsonl")
    assert _hits(found, "multi-turn")[2] > _hits(found, "multi-turn")[0] == 0


@pytest.mark.full
def test_the_claim_on_the_real_model(model_path: Path) -> None:
    found = run(Options(model=str(model_path)), NoProgress())
    assert found.is_reached, found.figures
