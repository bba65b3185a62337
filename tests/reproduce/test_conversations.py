"""Conversations by rule, and from files that may be bad."""

import json
import random
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.reproduce.conversations import (
    Question,
    few_shot,
    multi_turn_from,
    read_questions,
    words,
)


def test_words_are_as_many_as_asked_and_the_same_for_a_seed() -> None:
    text = words(random.Random(3), 21)
    assert len(text.split()) == 21 and text == words(random.Random(3), 21)


def test_few_shot_tasks_take_turns_and_share_their_examples() -> None:
    chats = few_shot(random.Random(0), num_tasks=2, num_questions=3, num_examples=2,
                     example_words=4, max_tokens=5)
    assert len(chats) == 6 and all(len(chat.before) == 5 for chat in chats)
    assert chats[0].before == chats[2].before != chats[1].before
    assert len({chat.turns[0] for chat in chats}) == 6


def test_chats_are_made_of_questions_of_one_category(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"category": c, "turns": [f"{c}{i} first", f"{c}{i} second"]}
            for c in "ab" for i in range(3)]
    rows.append({"category": "c", "turns": ["one only"]})
    rows.append({"category": "a", "turns": ["x" * 500, "short"]})
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    chats = multi_turn_from(read_questions(path), random.Random(0), num_chats=9, num_turns=4,
                            system_words=8, max_tokens=5, max_chars=100)
    assert len(chats) == 2
    for chat in chats:
        assert len(chat.turns) == 4 and len({turn[0] for turn in chat.turns}) == 1
        assert chat.turns[0].endswith("first") and chat.turns[1].endswith("second")


def test_too_few_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="no category has 4 turns"):
        multi_turn_from([Question("a", ["one", "two"])], random.Random(0), num_chats=1, num_turns=4,
                        system_words=8, max_tokens=5, max_chars=100)


@pytest.mark.parametrize("line, message", [
    ("{", "line 1: not a question .JSONDecodeError"), ("[]", "line 1: not a question .TypeError"),
    ('{"turns": []}', "line 1: .* turns is no list of texts"),
    ('{"turns": [1]}', "line 1: .* turns is no list of texts"),
    ('{"turns": ["a", " "]}', "line 1: .* turns is no list of texts"),
    ('{"turn": ["a"]}', "line 1: not a question .KeyError"), ("", "has no questions"),
])  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        read_questions(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not text"):
        read_questions(tmp_path / "binary")
