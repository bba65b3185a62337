"""The request and answer of /v1/decisions, as typed fields with the wire's names. No meaning."""

from typing import Any

import msgspec


class DecisionRequest(msgspec.Struct, kw_only=True):
    """POST /v1/decisions. input: a text or a list of items; questions: see server/decisions.py."""

    input: Any
    questions: list[Any]
    model: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    request_id: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Known, and without effect here: hints and labels.
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    safety_identifier: Any = None
    user: Any = None
    metadata: Any = None


class PredicateAnswer(msgspec.Struct, kw_only=True, tag_field="type", tag="predicate"):
    """probability: that the statement is true. label_mass: see ChoiceAnswer."""

    name: str | None
    probability: float
    label_mass: float


class ChoiceProbability(msgspec.Struct, kw_only=True):
    """Of one choice, in the order of the question."""

    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, kw_only=True, tag_field="type", tag="choice"):
    """The likeliest choice. label_mass: the share of the model's whole distribution that falls on
    the labels; little of it says that the model did not want to answer in this form."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]
    label_mass: float


class ScoreProbability(msgspec.Struct, kw_only=True):
    """Of one level. value: its index, 0 is the first."""

    label: str
    value: int
    probability: float


class ScoreAnswer(msgspec.Struct, kw_only=True, tag_field="type", tag="score"):
    """score: the mean of the level indices, weighted by probability. confidence: the probability of
    the likeliest level."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbability]
    label_mass: float


class DecisionInputDetails(msgspec.Struct, kw_only=True):
    """cached_tokens: found in the prefix cache; cache_write_tokens: computed and put there."""

    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(msgspec.Struct, kw_only=True):
    """Nothing is reasoned about."""

    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct, kw_only=True):
    """What the questions have in common counts once; each question is answered by one token."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class DecisionResponse(msgspec.Struct, kw_only=True):
    """POST /v1/decisions: answers in the order of the questions."""

    id: str
    object: str = "decision"
    created: int
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage
