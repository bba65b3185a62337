"""The step after the one in flight, prepared while that runs. Decisions only: nothing is taken.

In the steady state there is nothing to decide: every request in flight draws one token, and the
next step computes it. Only what depends on that token is left for later: who has ended, the hash
of a block it fills, the block that it enters.
"""

import dataclasses
from collections.abc import Iterable

from octavo.core.request import Request
from octavo.core.step import CachedRequestData, SchedulerOutput


@dataclasses.dataclass(slots=True, frozen=True)
class PreparedStep:
    """One token for each of these requests, in rank order.

    rows: the request and what the worker is told; None where the token enters or fills a block, and
        where the step in flight fills one: the cache may then have that block already, and gives
        its own for it.
    num_new_blocks: free blocks it takes if nobody ends.
    """

    rows: list[tuple[Request, CachedRequestData | None]]
    num_scheduled_tokens: dict[str, int]
    num_new_blocks: int


def prepare(
    running: Iterable[Request], in_flight: SchedulerOutput, *, block_size: int
) -> PreparedStep | None:
    """The step that follows if nothing but ends and aborts happens; None if more may happen.

    Every running request must draw one token in the step in flight. Not prepared: a request that
    computes a part of its prompt only, or none (no tokens were left for it), and one with a
    grammar, which may force tokens behind the one drawn. What a drawing request wrote last is its
    own block, not cached yet and, unless its prompt is forked, not shared: its next token needs no
    copy on write. Forks are the caller's to look for.
    """
    rows: list[tuple[Request, CachedRequestData | None]] = []
    num_scheduled_tokens: dict[str, int] = {}
    num_new_blocks = 0
    scheduled = in_flight.num_scheduled_tokens
    for request in running:
        request_id = request.request_id
        # tokens computed when the step in flight is over; 0: it is not part of it
        end = scheduled.get(request_id, -request.num_computed_tokens) + request.num_computed_tokens
        if end != len(request.token_ids) or request.params.structured_outputs is not None:
            return None
        place = end % block_size
        data = None
        if place == 0:
            num_new_blocks += 1
        elif place + 1 < block_size and end - place <= request.num_computed_tokens:
            data = CachedRequestData(request_id, end, [], new_token_ids=[])
        rows.append((request, data))
        num_scheduled_tokens[request_id] = 1
    return PreparedStep(rows, num_scheduled_tokens, num_new_blocks)
