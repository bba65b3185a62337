"""The questions of /v1/decisions: their checks, their words in the prompt, and what the logprobs of
their labels answer. Knows no engine and no HTTP.
"""

import dataclasses
import json
import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.refusals import bad, short
from octavo.core.sampling_params import MAX_LOGPROB_TOKEN_IDS
from octavo.server.protocol.decisions import (
    ChoiceAnswer,
    ChoiceProbability,
    PredicateAnswer,
    ScoreAnswer,
    ScoreProbability,
)
from octavo.tokenizer.tokenizer import Tokenizer

MAX_QUESTIONS = 256
MAX_CHOICES = MAX_LOGPROB_TOKEN_IDS
MAX_LEVELS = 10
# bounds of OpenAI's API for one part of JSON
_MAX_JSON_BYTES = 256 << 10

Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class Labels:
    """Words that name the options, each one token of this model: A to Z, or pairs of letters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = self._single_tokens(list(string.ascii_uppercase))
        self._pairs: dict[str, int] | None = None

    def _single_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for text in texts:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1 and ids[0] not in found.values():
                found[text] = ids[0]
        return found

    def take(self, count: int, where: str) -> dict[str, int]:
        """`count` labels and their token ids. Raises InvalidRequestError."""
        found = self._letters
        if count > len(found):
            if self._pairs is None:
                letters = string.ascii_uppercase
                self._pairs = self._single_tokens([a + b for a in letters for b in letters])
            found = max(self._letters, self._pairs, key=len)
        if count > len(found):
            raise bad(where, f"has {count} entries: this model's tokenizer has {len(found)} "
                       "labels of one token, give at most that many")
        return dict(list(found.items())[:count])


@dataclasses.dataclass(slots=True, frozen=True)
class Question:
    """One question, checked. options: (what is shown, value or label), in order."""

    kind: str
    name: str | None
    instructions: str
    options: tuple[tuple[str, str | bool], ...]
    labels: tuple[str, ...]
    label_ids: tuple[int, ...]

    def text(self) -> str:
        """What the model reads, behind the input."""
        lines = [f"{label}) {shown}" for label, (shown, _) in zip(self.labels, self.options)]
        ask = {"predicate": "Is this statement true: ", "choice": "", "score": ""}[self.kind]
        return (f"{ask}{self.instructions}\n" + "\n".join(lines)
                + "\nAnswer with the label alone.")

    def answer(self, logprobs: Mapping[int, float]) -> Answer:
        """From the model's logprobs of the label ids: a softmax over the labels."""
        values = [logprobs[i] for i in self.label_ids]
        highest = max(values)
        # labels that are all impossible are equally so
        weights = [math.exp(v - highest) if highest > -math.inf else 1.0 for v in values]
        shares = [weight / math.fsum(weights) for weight in weights]
        mass = math.fsum(math.exp(v) for v in values)
        best = max(range(len(shares)), key=shares.__getitem__)
        if self.kind == "predicate":
            return PredicateAnswer(name=self.name, probability=shares[0], label_mass=mass)
        if self.kind == "choice":
            return ChoiceAnswer(
                name=self.name, choice=self.options[best][1], confidence=shares[best],
                probabilities=[ChoiceProbability(value=value, probability=share)
                               for (_, value), share in zip(self.options, shares)],
                label_mass=mass)
        return ScoreAnswer(
            name=self.name, score=math.fsum(i * share for i, share in enumerate(shares)),
            confidence=shares[best],
            probabilities=[ScoreProbability(label=str(label), value=i, probability=share)
                           for i, ((_, label), share) in enumerate(zip(self.options, shares))],
            label_mass=mass)


def questions_of(given: Sequence[Any], labels: Labels) -> list[Question]:
    """Raises InvalidRequestError naming the place."""
    if not 1 <= len(given) <= MAX_QUESTIONS:
        raise bad("questions", f"has {len(given)} entries: give 1 to {MAX_QUESTIONS}")
    return [_question(item, f"questions[{i}]", labels) for i, item in enumerate(given)]


def _question(item: Any, where: str, labels: Labels) -> Question:
    if not isinstance(item, dict):
        raise bad(where, f"is {short(item)}: give an object")
    kind, name = item.get("type"), item.get("name")
    if kind not in ("predicate", "choice", "score"):
        raise bad(f"{where}.type", f"is {short(kind)}: give 'predicate', 'choice' or 'score'")
    if not isinstance(name, (str, type(None))):
        raise bad(f"{where}.name", f"is {short(name)}: give a text, or leave it out")
    if kind == "predicate":
        options: list[tuple[str, str | bool]] = [("yes", True), ("no", False)]
        place = where
    elif kind == "choice":
        place = f"{where}.choices"
        options = _options(item.get("choices"), place, "value", MAX_CHOICES)
        if len({(type(value), value) for _, value in options}) < len(options):
            raise bad(place, "has two choices of one value: each must be unique")
    else:
        place = f"{where}.levels"
        options = _options(item.get("levels"), place, "label", MAX_LEVELS)
    taken = labels.take(len(options), place)
    return Question(kind, name, part_text(item.get("instructions"), f"{where}.instructions"),
                    tuple(options), tuple(taken), tuple(taken.values()))


def _options(given: Any, where: str, key: str, most: int) -> list[tuple[str, str | bool]]:
    if not isinstance(given, list) or not 2 <= len(given) <= most:
        shown = f"has {len(given)} entries" if isinstance(given, list) else f"is {short(given)}"
        raise bad(where, f"{shown}: give a list of 2 to {most}")
    found: list[tuple[str, str | bool]] = []
    for i, option in enumerate(given):
        place = f"{where}[{i}]"
        if not isinstance(option, dict):
            raise bad(place, f"is {short(option)}: give an object with {key!r}")
        value, description = option.get(key), option.get("description")
        if not isinstance(value, str) and not (key == "value" and isinstance(value, bool)):
            raise bad(f"{place}.{key}", f"is {short(value)}: give a text"
                       + (", true or false" if key == "value" else ""))
        if not isinstance(description, (str, type(None))):
            raise bad(f"{place}.description", f"is {short(description)}: give a text")
        shown = value if isinstance(value, str) else json.dumps(value)
        found.append((f"{shown}: {description}" if description else shown, value))
    return found


def part_text(content: Any, where: str) -> str:
    """The text of instructions or of a message: itself, or of its text and JSON parts. Raises
    InvalidRequestError naming the part."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise bad(where, f"is {short(content)}: give a text or a list of parts")
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        raise bad(where, "is an input_image: this model reads text only")
    if kind == "input_json":
        data = part.get("data")
        if not isinstance(data, dict) and not (
                isinstance(data, list) and all(isinstance(d, dict) for d in data)):
            raise bad(f"{where}.data", f"is {short(data)}: give an object or a list of objects")
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        if len(text) > _MAX_JSON_BYTES:
            raise bad(f"{where}.data", f"is longer than {_MAX_JSON_BYTES} characters")
        return text
    key = {"input_text": "text", "output_text": "text", "refusal": "refusal"}.get(str(kind))
    if key is None:
        raise bad(where, f"is {short(part)}: give a part of type 'input_text' or 'input_json'")
    if not isinstance(part.get(key), str):
        raise bad(f"{where}.{key}", f"is {short(part.get(key))}: give a text")
    return str(part[key])
