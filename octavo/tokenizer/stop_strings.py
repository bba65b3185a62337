"""Finds stop strings in a text that arrives in pieces. Knows nothing of tokens or requests."""

from collections.abc import Sequence


class StopStringMatcher:
    """Lets through the text that cannot be part of a stop string any more.

    The match that begins earliest in the text wins; of those that begin at one place, the shortest
    (the text before it is the same, and it is known sooner).
    How the text is cut into pieces makes no difference. A feed costs time in proportion to its
    text and the number of stop strings; what is held back is shorter than the longest stop string.

    Args:
        stops: not empty strings; empty ones are ignored.
        include_stop: emit the stop string itself too.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len)
        self._include_stop = include_stop
        self._held = ""
        self._matched: str | None = None

    @property
    def matched_stop(self) -> str | None:
        """The stop string that was found, if any."""
        return self._matched

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text to emit now, the stop string if it was found). After a match nothing is emitted."""
        if self._matched is not None:
            return "", self._matched
        if not self._stops:
            return text, None
        return self._advance(self._held + text, at_end=False)

    def flush(self) -> tuple[str, str | None]:
        """The same at the end of the text: what was held back is settled."""
        if self._matched is not None:
            return "", self._matched
        return self._advance(self._held, at_end=True)

    def _advance(self, text: str, *, at_end: bool) -> tuple[str, str | None]:
        start, stop = self._earliest(text)
        undecided = start if at_end else self._undecided(text, start)
        if stop is None or undecided < start:
            # Nothing found, or a stop string that begins earlier may yet come true.
            self._held = text[undecided:]
            return text[:undecided], None
        self._matched = stop
        self._held = ""
        return text[: start + len(stop)] if self._include_stop else text[:start], stop

    def _earliest(self, text: str) -> tuple[int, str | None]:
        """Start of the first whole match and its string; (len(text), None) if there is none."""
        best, found = len(text), None
        for stop in self._stops:  # shortest first: a later one must begin strictly earlier
            at = text.find(stop, 0, best + len(stop) - 1)
            if at >= 0:
                best, found = at, stop
        return best, found

    def _undecided(self, text: str, before: int) -> int:
        """First place below `before` where a stop string may still be growing, else `before`."""
        first = before
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1), first)
            while at >= 0:
                if stop.startswith(text[at:]):
                    first = at
                    break
                at = text.find(stop[0], at + 1, first)
        return first
