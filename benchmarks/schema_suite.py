"""The JSON Schema Test Suite through Octavo's grammars and through llguidance alone.

    python -m benchmarks.schema_suite PATH [--tokenizer MODEL] [--list]

PATH: the folder of one draft (`tests/draft2020-12` of json-schema-org/JSON-Schema-Test-Suite). Each
test's value is written compactly, tokenized, and offered to the grammar of its schema; "refused"
are tests whose schema is not accepted. A value counts as accepted if one of its spellings is: a
grammar fixes the order of keys, and 1.0 is the integer 1 (so are all integral floats). Tests that
want a format to be no more than an annotation are left out: formats are enforced here, as the
suite's other files ask.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import OctavoError
from octavo.grammar.backend import MatcherState
from octavo.grammar.llguidance_backend import LLGuidanceBackend
from octavo.tokenizer.loading import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.hub import resolve
from octavo.weights.model_file import open_model

_ANNOTATION_ONLY = "is only an annotation by default"
_MAX_SPELLINGS = 120

# whether the tokens are a whole text of the grammar
Accepts = Callable[[list[int]], bool]


@dataclasses.dataclass(slots=True)
class Score:
    """Tests by verdict; what is wrong, and why schemas were refused."""

    passed: int = 0
    refused: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        return f"{self.passed} pass, {self.refused} refused, {len(self.wrong)} wrong"


class Octavo:
    """As compiled for requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = LLGuidanceBackend(
            tokenizer.to_json(), vocab_size=tokenizer.vocab_size,
            eos_token_ids=tokenizer.eos_token_ids)

    def compile(self, schema: Any) -> Accepts | str:
        """What accepts values, or why the schema is refused."""
        if schema is False:
            return "false is refused"
        try:
            start = self._backend.compile(StructuredOutputs(json=schema))
        except OctavoError as error:
            return error.message

        def accepts(token_ids: list[int]) -> bool:
            matcher = start.copy()
            try:
                matcher.accept(token_ids)
            except OctavoError:
                return False
            return matcher.state() != MatcherState.OPEN

        return accepts


class LLGuidanceAlone:
    """Its defaults: flexible white space, its own reading of formats and patterns."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.vocab_size,
                                      eos_token=list(tokenizer.eos_token_ids))

    def compile(self, schema: Any) -> Accepts | str:
        """See Octavo."""
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except ValueError as error:
            return str(error)
        start = LLMatcher(self._tokenizer, grammar, log_level=0)
        if start.is_error():
            return str(start.get_error())

        def accepts(token_ids: list[int]) -> bool:
            matcher = start.deep_copy()
            return bool(matcher.try_consume_tokens(token_ids) == len(token_ids)
                        and matcher.is_accepting())

        return accepts


def run(folder: Path, tokenizer: Tokenizer) -> dict[str, Score]:
    """Scores of both, over the same tests."""
    backends: dict[str, Octavo | LLGuidanceAlone] = {
        "octavo": Octavo(tokenizer), "llguidance": LLGuidanceAlone(tokenizer)}
    scores = {name: Score() for name in backends}
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            tests = [t for t in group["tests"] if _ANNOTATION_ONLY not in t["description"]]
            for name, backend in backends.items():
                _judge(scores[name], f"{path.stem}: {group['description']}",
                       backend.compile(group["schema"]), tests, tokenizer)
    return scores


def _judge(score: Score, title: str, accepts: Accepts | str, tests: list[dict[str, Any]],
           tokenizer: Tokenizer) -> None:
    if isinstance(accepts, str):
        score.refused += len(tests)
        score.reasons[accepts.splitlines()[0][:120]] += len(tests)
        return
    for test in tests:
        accepted = any(accepts(tokenizer.encode(text, add_special_tokens=False))
                       for text in spellings(test["data"]))
        if accepted == test["valid"]:
            score.passed += 1
        else:
            verdict = "accepted" if accepted else "rejected"
            score.wrong.append(f"{title}: {json.dumps(test['data'])[:100]} is {verdict}")


def spellings(value: Any) -> list[str]:
    """Compact texts of a value: as given, then with its keys in other orders."""
    return list(dict.fromkeys(itertools.islice(_spellings(value), _MAX_SPELLINGS)))


def _spellings(value: Any) -> Iterator[str]:
    if isinstance(value, float) and value.is_integer():
        yield str(int(value))
        yield json.dumps(value)
    elif isinstance(value, list):
        for items in itertools.product(*map(spellings, value)):
            yield f"[{','.join(items)}]"
    elif isinstance(value, dict):
        for order in itertools.permutations(value.items()):
            for values in itertools.product(*(spellings(item) for _, item in order)):
                pairs = (f"{_text(key)}:{text}" for (key, _), text in zip(order, values))
                yield "{" + ",".join(pairs) + "}"
    else:
        yield _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def default_tokenizer(model: str) -> Tokenizer:
    """Of a model that is here, or that can be fetched."""
    return load_tokenizer(open_model(resolve(model)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokenizer", default="smollm2-135m", help="the model whose it is")
    parser.add_argument("--list", action="store_true", help="also what is wrong or refused")
    args = parser.parse_args()
    scores = run(args.path, default_tokenizer(args.tokenizer))
    for name, score in scores.items():
        print(f"{name}: {score}")
        if args.list:
            print(*(f"  wrong: {line}" for line in score.wrong), sep="\n")
            print(*(f"  refused {n}: {why}" for why, n in score.reasons.most_common()), sep="\n")
    share = scores["octavo"].passed / max(1, scores["llguidance"].passed)
    print(f"octavo passes {share:.1%} of what llguidance alone passes")
    return 1 if scores["octavo"].wrong or share < 0.9 else 0


if __name__ == "__main__":
    sys.exit(main())
