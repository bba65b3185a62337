"""What a live view shows: steps and snapshots of the engine, as structs of small numbers.

They travel from the core to the front end (msgpack) and on to listeners (JSON, by field name).
Must never hold text of prompts or outputs, or token ids.
"""

import msgspec


class LiveStep(msgspec.Struct, kw_only=True):
    """One step that ran.

    Attributes:
        n: its number. t: unix seconds at its end. dt: seconds it took.
        reqs: (slot, prompt tokens, output tokens) that it computed, in row order. A slot is the
            small number of a live request, the same from its first step or snapshot to its end.
        waiting, running: requests after it.
        preempted, finished: slots; aborted requests are among the finished ones.
    """

    n: int
    t: float
    dt: float
    reqs: list[tuple[int, int, int]]
    waiting: int
    running: int
    preempted: list[int]
    finished: list[int]


class LiveSteps(msgspec.Struct, kw_only=True):
    """The steps of an interval, oldest first. dropped: steps before them that were left out."""

    steps: list[LiveStep]
    dropped: int = 0


class LiveRequest(msgspec.Struct, kw_only=True):
    """A request that is not finished.

    Attributes:
        state: "waiting", "running" or "preempted" (waits again).
        cached_tokens: prompt tokens found in the prefix cache.
        num_blocks: length of its block table.
        blocks: ids of these blocks in order; cut where a snapshot lists too many in all.
    """

    slot: int
    id: str
    state: str
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    cached_tokens: int
    age_s: float
    num_blocks: int
    blocks: list[int]


class LiveBlocks(msgspec.Struct, kw_only=True):
    """The KV blocks.

    Attributes:
        free: blocks that no request holds, cached ones included. cached: nodes of the radix tree.
        refs: a character a block (of per_char blocks: of the highest): "." free without content,
            "c" cached and held by nobody, "1" to "9" the reference count, "+" more than 9.
    """

    total: int
    free: int
    cached: int
    per_char: int
    refs: str


class LiveNode(msgspec.Struct, kw_only=True):
    """An edge of the radix tree: a run of cached blocks of which each but the last has one child.

    Attributes:
        id: the first block's id. parent: the id of the node that it continues.
        refs: the highest reference count. last_used_s: seconds since nobody holds it; 0: held.
    """

    id: int
    parent: int | None
    blocks: int
    tokens: int
    refs: int
    last_used_s: float


class LiveTree(msgspec.Struct, kw_only=True):
    """The radix tree, parents before children. left_out: nodes, those used longest ago."""

    nodes: list[LiveNode]
    left_out: int = 0


class LiveTotals(msgspec.Struct, kw_only=True):
    """Counters since the engine started."""

    steps: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    copies_on_write: int
    jump_forward_tokens: int
    finished: int


class LiveState(msgspec.Struct, kw_only=True):
    """The engine between two steps, at unix second t. requests: running ones first, at most 256;
    waiting and running count them all."""

    t: float
    waiting: int
    running: int
    requests: list[LiveRequest]
    blocks: LiveBlocks
    tree: LiveTree
    totals: LiveTotals


class LiveHello(msgspec.Struct, kw_only=True):
    """The engine that is watched: its limits."""

    model: str
    version: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    backend: str
    threads: int
