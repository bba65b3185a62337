"""What is measured: named tests, each a group of cases one loaded engine runs."""

import dataclasses
from typing import Literal

# engines that admit prompts in pieces run on while the last ones are prefilled
_MARGIN_TOKENS = 160
# prompts of this many tokens take seconds; beyond that one computation serves several windows
_CHEAP_PROMPTS = 4096
_WINDOWS = 4
_LENGTHS = (512, 1024, 2048, 4096, 8192)


@dataclasses.dataclass(slots=True, frozen=True)
class Case:
    """One row of the table. "pp": a prompt of `tokens`. "tg": `tokens` steps of `sequences`
    sequences, each `context` tokens long at the start; where computing the prompts takes longer
    than what is measured, `windows` runs of them follow one another."""

    kind: Literal["pp", "tg"]
    tokens: int
    sequences: int = 1
    context: int = 0
    windows: int = 1

    @property
    def name(self) -> str:
        """pp512, tg64@512, tg32x16@64."""
        if self.kind == "pp":
            return f"pp{self.tokens}"
        many = f"x{self.sequences}" if self.sequences > 1 else ""
        return f"tg{self.tokens}{many}@{self.context}"

    @property
    def length(self) -> int:
        """Tokens of a sequence at the end, with room to spare."""
        return self.context + self.tokens * self.windows + _MARGIN_TOKENS


@dataclasses.dataclass(slots=True, frozen=True)
class Group:
    """Cases that share a loaded engine. together: engines with all the files stay loaded at once
    and alternate; else (their KV caches would not fit into memory) file after file."""

    name: str
    cases: tuple[Case, ...]
    together: bool = True

    @property
    def max_sequences(self) -> int:
        return max(case.sequences for case in self.cases)

    @property
    def max_context(self) -> int:
        return max(case.length for case in self.cases)


def _batch(context: int, counts: tuple[int, ...] = (8, 16, 32, 64)) -> tuple[Case, ...]:
    return tuple(Case("tg", 32, n, context, _WINDOWS if n * context > _CHEAP_PROMPTS else 1)
                 for n in counts)


GROUPS = {
    group.name: group
    for group in (
        Group("decode1", (Case("tg", 64, 1, 512),)),
        Group("prefill512", (Case("pp", 512),)),
        Group("batch", (*_batch(64), *_batch(512)), together=False),
        Group("batch-small", (Case("tg", 32, 16, 64),)),
        # beyond batch-some: minutes a repetition, so apart
        Group("batch-large", (*_batch(64, (16, 64)), *_batch(512, (16, 64))), together=False),
        Group("batch-some", (*_batch(64, (8, 32)), *_batch(512, (8, 32))), together=False),
        # decode, prefill and batches of an engine that takes minutes to load
        Group("once", (Case("tg", 64, 1, 512), Case("pp", 512), *_batch(64, (8, 32)),
                       *_batch(512, (8, 32)))),
        Group("growth", (*(Case("pp", n) for n in _LENGTHS),
                         *(Case("tg", 16, 1, n, _WINDOWS) for n in _LENGTHS))),
        Group("growth-short", (*(Case("pp", n) for n in _LENGTHS[:3]),
                               *(Case("tg", 16, 1, n, _WINDOWS) for n in _LENGTHS[:3]))),
        Group("long", (Case("pp", 4096), Case("tg", 32, 1, 4096, _WINDOWS))),
        # seconds in all: to see that everything works
        Group("smoke", (Case("pp", 64), Case("tg", 8, 1, 32), Case("tg", 8, 4, 16))),
    )
}
DEFAULT_TESTS = ("decode1", "prefill512", "batch")
