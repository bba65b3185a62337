"""Comparing arms fairly on a machine that is not quiet: they take turns.

Whole runs alternate (alternate), or arms share the time in slices, each with a clock of its own
that stands still while the others run: equal slices (take_turns), or equal progress (keep_pace).
Knows nothing of engines.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

_T = TypeVar("_T")
# long against what the caches lose when the arm changes (milliseconds), short against the
# minutes in which a shared machine changes its speed
SLICE_S = 0.5


class Arm(Protocol):
    """Something that can be run a while."""

    @property
    def is_done(self) -> bool: ...

    def run_for(self, seconds: float) -> None:
        """Runs until that much of its clock has passed, or until it is done."""


class PacedArm(Arm, Protocol):
    """One that knows how far it is."""

    @property
    def share_done(self) -> float:
        """0 to 1, by work that is the same in all arms; grows with every run_for."""


def alternate(arms: Mapping[str, Callable[[], _T]], repetitions: int, *,
              between: Callable[[str], None] = lambda name: None) -> dict[str, list[_T]]:
    """What each arm gave, `repetitions` times, in the order A B B A A B ...: neither is always
    first, nor always behind the same one. between: called with an arm's name before it runs."""
    found: dict[str, list[_T]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(repetitions):
        for name in order:
            between(name)
            found[name].append(arms[name]())
        order.reverse()
    return found


def take_turns(arms: Sequence[Arm], *, slice_s: float = SLICE_S,
               after_round: Callable[[], None] = lambda: None) -> None:
    """Runs all arms to their ends, `slice_s` of each in turn, the order reversed in every round."""
    order = list(arms)
    while any(not arm.is_done for arm in order):
        for arm in order:
            if not arm.is_done:
                arm.run_for(slice_s)
        order.reverse()
        after_round()


def keep_pace(arms: Sequence[PacedArm], *, slice_s: float = SLICE_S,
              after_turn: Callable[[], None] = lambda: None) -> None:
    """Runs all arms to their ends; each turn goes to the arm that has done least. So every arm's
    run spans all of the time, also one that is twice as fast as another, or that takes seconds for
    a step: with equal slices it would end early and see less of what the machine goes through."""
    while running := [arm for arm in arms if not arm.is_done]:
        min(running, key=lambda arm: arm.share_done).run_for(slice_s)
        after_turn()
