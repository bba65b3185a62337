"""Conversations to measure prefix caches with: written by rule, or read from a file of turns.

Text only: no tokens, no engine.
"""

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from octavo.errors import ConfigError

MAX_DATA_BYTES = 1 << 28
Message = dict[str, str]

_VOCABULARY = (
    "account answer approach area balance begin benefit bridge build call careful case change "
    "city class clear collect common compare complete consider contain control correct cost "
    "country course cover create customer data decide deliver depend describe detail develop "
    "different difficult direct discuss document early effect energy engine example exchange "
    "expect explain express fact family field final find follow force form future garden general "
    "give good government group grow handle happen harbour help history house improve include "
    "increase information interest journey keep knowledge language large learn letter level light "
    "list local machine manage market matter measure meeting method moment money morning mountain "
    "music nature number offer office open order organize paper part people period plan plant "
    "point policy position possible power prepare present price problem process produce program "
    "project provide public purpose question quick reach reason receive record reduce region "
    "report require research result return river road rule safe sample science season second "
    "select send service shape short simple small social sound source special stage standard "
    "start station still store story street strong study subject suggest supply support surface "
    "system table teach test theory time trade travel understand unit valley value view village "
    "visit voice water weather window winter word work world write year"
)
_WORDS = _VOCABULARY.split()


@dataclasses.dataclass(slots=True, frozen=True)
class Chat:
    """One conversation: what stands before it, and what its user says, turn by turn."""

    before: list[Message]
    turns: list[str]
    max_tokens: int  # of each answer


@dataclasses.dataclass(slots=True, frozen=True)
class Question:
    """A line of a data file."""

    category: str
    turns: list[str]


def words(rng: random.Random, count: int) -> str:
    """Sentences of about eight words, `count` words in all."""
    drawn = rng.choices(_WORDS, k=count)
    sentences = [" ".join(drawn[i : i + 8]) for i in range(0, count, 8)]
    return " ".join(sentence.capitalize() + "." for sentence in sentences)


def multi_turn(rng: random.Random, *, num_chats: int, num_turns: int, system_words: int,
               turn_words: int, max_tokens: int) -> list[Chat]:
    """Chats under one system prompt."""
    before = [{"role": "system", "content": words(rng, system_words)}]
    return [Chat(before, [words(rng, turn_words) for _ in range(num_turns)], max_tokens)
            for _ in range(num_chats)]


def few_shot(rng: random.Random, *, num_tasks: int, num_questions: int, num_examples: int,
             example_words: int, max_tokens: int) -> list[Chat]:
    """Single questions behind the examples of their task, the tasks in turn."""
    tasks = []
    for _ in range(num_tasks):
        before = [{"role": "system", "content": words(rng, 16)}]
        for _ in range(num_examples):
            before.append({"role": "user", "content": words(rng, example_words)})
            before.append({"role": "assistant", "content": words(rng, example_words // 2)})
        tasks.append(before)
    return [Chat(before, [words(rng, example_words)], max_tokens)
            for _ in range(num_questions) for before in tasks]


def shared_system(rng: random.Random, questions: Sequence[str], *, num_prompts: int,
                  system_words: int, max_tokens: int) -> list[Chat]:
    """Single questions, each under one of num_prompts long system prompts, those in turn."""
    prompts = [[{"role": "system", "content": words(rng, system_words)}]
               for _ in range(num_prompts)]
    return [Chat(prompts[i % num_prompts], [question], max_tokens)
            for i, question in enumerate(questions)]


def read_questions(path: Path) -> list[Question]:
    """A JSON object a line: {"turns": ["...", ...], "category": "..."}, as of Spec-Bench and
    MT-Bench. Raises ConfigError naming file and line."""
    try:
        if path.stat().st_size > MAX_DATA_BYTES:
            raise ConfigError(f"{path}: is larger than {MAX_DATA_BYTES} bytes", param="data")
        found = list(_questions(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", param="data") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text", param="data") from None
    if not found:
        raise ConfigError(f"{path}: has no questions", param="data")
    return found


def _questions(path: Path) -> Iterator[Question]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                turns = data["turns"]
                if not turns or not all(isinstance(t, str) and t.strip() for t in turns):
                    raise ValueError("turns is no list of texts")
                yield Question(str(data.get("category", "")), list(turns))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{path}, line {number}: not a question "
                                  f"({type(error).__name__}: {error})", param="data") from None


def multi_turn_from(questions: Sequence[Question], rng: random.Random, *, num_chats: int,
                    num_turns: int, system_words: int, max_tokens: int,
                    max_chars: int) -> list[Chat]:
    """Chats of num_turns turns, of questions of one category one behind the other: those with
    several turns where there are any. Turns above max_chars are left out. Raises ConfigError."""
    several = [q for q in questions if len(q.turns) > 1]
    by_category: dict[str, list[str]] = {}
    for question in several or questions:
        turns = [turn for turn in question.turns if len(turn) <= max_chars]
        by_category.setdefault(question.category, []).extend(turns)
    rows = [turns[i : i + num_turns] for turns in by_category.values()
            for i in range(0, len(turns) - num_turns + 1, num_turns)]
    if not rows:
        raise ConfigError(f"data: no category has {num_turns} turns of at most {max_chars} "
                          "characters: give more questions", param="data")
    before = [{"role": "system", "content": words(rng, system_words)}]
    rng.shuffle(rows)
    return [Chat(before, turns, max_tokens) for turns in rows[:num_chats]]
