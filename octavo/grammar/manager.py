"""GrammarManager: the grammars of the requests in one engine core.

    add ──compile, in a thread──> take_ready ──> with_masks ──step──> advance ──> ... ──> remove

A request enters the scheduler only when its grammar is compiled. From then on its matcher follows
its output, through preemption too, and the mask of its next token is always ready before the step.

Where the grammar forces text, a request's next tokens are those that the tokenizer makes of it
(`forced`), and no others. With jump-forward they follow a drawn token at once, without a step each;
without, each is drawn under a mask that allows it alone. The matcher is asked the same questions
in the same order either way, so the outputs are the same. Knows a backend through the seam; knows
neither scheduler nor worker.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from octavo.core.messages import EngineCoreRequest
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError, OctavoError
from octavo.grammar.backend import GrammarBackend, GrammarMatcher, MaskRow, MatcherState

logger = logging.getLogger(__name__)

_Key = tuple[str, str, str]
_CACHE_SIZE = 128  # compiled grammars; each takes some hundred KiB before it is used
_NUM_THREADS = 2


@dataclasses.dataclass(slots=True, frozen=True)
class _Compiled:
    """A grammar at its start, with what the first tokens may be. Only ever copied."""

    matcher: GrammarMatcher
    first_mask: bytes
    forced: tuple[int, ...]


@dataclasses.dataclass(slots=True)
class _Running:
    """One request: where it is in its grammar, and what its next token may be.

    forced: the tokens that must come next, not taken yet; `mask` allows the first of them only.
    may_jump: see _jumpable.
    """

    spec: StructuredOutputs
    matcher: GrammarMatcher
    mask: bytes
    forced: collections.deque[int]
    ignore_eos: bool
    may_jump: Callable[[int], bool]


class GrammarManager:
    """One caller at a time; compiling goes on in threads of its own.

    load_backend: makes the backend, in such a thread, when the first grammar comes or warm() is
    called. jump_forward: forced tokens are handed over at once.
    """

    def __init__(self, load_backend: Callable[[], GrammarBackend], *,
                 jump_forward: bool = False) -> None:
        self._load_backend = load_backend
        self._jump_forward = jump_forward
        self._backend: GrammarBackend | None = None
        self._backend_lock = threading.Lock()
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._compiled: collections.OrderedDict[_Key, concurrent.futures.Future[_Compiled]] = (
            collections.OrderedDict())
        self._pending: dict[str, tuple[EngineCoreRequest, concurrent.futures.Future[_Compiled]]]
        self._pending = {}
        self._running: dict[str, _Running] = {}
        self._row: MaskRow | None = None  # scratch of the step
        self._eos_bits: list[tuple[int, int]] = []

    # ---- requests come and go

    def warm(self) -> None:
        """Begins to load the backend, so that the first grammar need not wait for it."""
        self._pool().submit(self._get_backend)

    def add(self, request: EngineCoreRequest) -> None:
        """Begins to compile the grammar of a request that has one."""
        spec = request.params.structured_outputs
        assert spec is not None
        self._pending[request.request_id] = (request, self._compile(spec))

    @property
    def has_pending(self) -> bool:
        """Whether a request waits for its grammar."""
        return bool(self._pending)

    def take_ready(self, *, wait_s: float
                   ) -> list[tuple[EngineCoreRequest, OctavoError | None]]:
        """Requests whose grammar is compiled, or could not be, in order of arrival.

        Waits up to wait_s for one. Samples of one group come together.
        """
        if not self._pending:
            return []
        futures = {future for _, future in self._pending.values()}
        done, _ = concurrent.futures.wait(
            futures, wait_s, return_when=concurrent.futures.FIRST_COMPLETED)
        ready = [(r, f) for r, f in self._pending.values() if f in done]
        return [(request, self._start(request, future)) for request, future in ready]

    def remove(self, request_ids: Iterable[str]) -> None:
        """Forgets requests, whether they run or wait. Unknown ids are ignored."""
        for request_id in request_ids:
            self._pending.pop(request_id, None)
            self._running.pop(request_id, None)

    def clear(self) -> None:
        """Forgets every request, and ends the threads."""
        self._pending.clear()
        self._running.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    # ---- one step

    def with_masks(self, so: SchedulerOutput) -> SchedulerOutput:
        """The step with the masks of its requests that have a grammar."""
        if not self._running:
            return so
        masks = {request_id: self._running[request_id].mask
                 for request_id in so.num_scheduled_tokens if request_id in self._running}
        return dataclasses.replace(so, masks=masks) if masks else so

    def advance(self, mro: ModelRunnerOutput) -> ModelRunnerOutput:
        """Takes the tokens a step has drawn, and makes the masks of the next ones.

        Returns the output with three things added: in `forced_token_ids` what must follow (with
        jump-forward), in `completed` the requests whose grammar allows nothing more, in `failed`
        those that cannot go on.
        """
        if not self._running:
            return mro
        completed: set[str] = set()
        failed: dict[str, str] = {}
        forced: dict[str, list[int]] = {}
        for request_id, token_ids in mro.sampled_token_ids.items():
            running = self._running.get(request_id)
            if running is None:
                continue
            jumped: list[int] = []
            try:
                if self._take(running, token_ids, jumped):
                    completed.add(request_id)
            except OctavoError as error:
                failed[request_id] = error.message
            if jumped:
                forced[request_id] = jumped
        if not completed and not failed and not forced:
            return mro
        return dataclasses.replace(mro, completed=frozenset(completed),
                                   failed=mro.failed | failed, forced_token_ids=forced)

    def _take(self, running: _Running, token_ids: Sequence[int], jumped: list[int]) -> bool:
        """True if nothing may follow these tokens and those it adds to `jumped`."""
        assert self._backend is not None
        matcher, forced = running.matcher, running.forced
        if token_ids[-1] in self._backend.eos_token_ids:
            return True
        for token_id in token_ids:
            if forced:  # the mask allowed no other
                forced.popleft()
            matcher.accept((token_id,))
        while matcher.state() != MatcherState.COMPLETE:
            if not forced and not self._next_mask(running):
                return True
            run = self._take_forced(running)
            if not run:
                if forced:
                    running.mask = _mask_of(self._backend, forced[0])
                return False
            matcher.accept(run)
            jumped += run
        return True

    def _take_forced(self, running: _Running) -> list[int]:
        """Forced tokens that are taken at once: with jump-forward, as far as they may be."""
        run: list[int] = []
        while self._jump_forward and running.forced and running.may_jump(running.forced[0]):
            run.append(running.forced.popleft())
        return run

    def _next_mask(self, running: _Running) -> bool:
        """Sets the mask of the next token, and what is forced from there on; False if the output
        can only end here."""
        assert self._backend is not None
        matcher = running.matcher
        if self._row is None:
            self._row = _mask_row(self._backend)
            self._eos_bits = _eos_bits(self._backend)
        row = self._row
        matcher.fill_mask(row)
        mask = None if running.ignore_eos else row.tobytes()
        # a few words as plain integers: NumPy's scalars would cost as much as half the mask
        for word, bits in self._eos_bits:
            row[word] = int(row[word]) & ~bits
        num_words = np.count_nonzero(row)
        if not num_words:
            if matcher.state() == MatcherState.OPEN:
                raise running.spec.error("the grammar cannot be followed any further (no token of "
                                         "this model fits)")
            return False
        running.mask = row.tobytes() if mask is None else mask
        if num_words == 1 and _allows_one(row):
            running.forced.extend(_forced(self._backend, matcher))
        return True

    # ---- compiling

    def _start(self, request: EngineCoreRequest,
               future: concurrent.futures.Future[_Compiled]) -> OctavoError | None:
        del self._pending[request.request_id]
        spec = request.params.structured_outputs
        assert spec is not None
        error = future.exception()
        if error is not None:
            if self._compiled.get(spec.key) is future:
                del self._compiled[spec.key]  # the cache holds what can be used
            if isinstance(error, OctavoError):
                return error
            logger.error("a grammar could not be compiled", exc_info=error)
            return spec.error(f"the grammar cannot be compiled ({type(error).__name__})")
        compiled = future.result()
        running = _Running(spec, compiled.matcher.copy(), compiled.first_mask,
                           collections.deque(compiled.forced), request.params.ignore_eos,
                           _jumpable(request))
        if running.ignore_eos and not running.forced:
            # EOS is no choice while the grammar allows anything else
            self._next_mask(running)
        self._running[request.request_id] = running
        return None

    def _compile(self, spec: StructuredOutputs) -> concurrent.futures.Future[_Compiled]:
        """Of equal grammars one is compiled."""
        key = spec.key
        future = self._compiled.get(key)
        if future is not None:
            self._compiled.move_to_end(key)
            return future
        future = self._pool().submit(self._compile_now, spec)
        self._compiled[key] = future
        while len(self._compiled) > _CACHE_SIZE:
            self._compiled.popitem(last=False)
        return future

    def _compile_now(self, spec: StructuredOutputs) -> _Compiled:
        backend = self._get_backend()
        matcher = backend.compile(spec)
        if matcher.state() == MatcherState.COMPLETE:
            raise spec.error("the grammar allows nothing but the empty text")
        row = _mask_row(backend)
        # of a copy: the grammar's own caches stay as they are, whoever used it before
        copy = matcher.copy()
        copy.fill_mask(row)
        if not row.any():
            raise spec.error("no token of this model can begin a text that fits the grammar")
        forced = _forced(backend, copy) if _allows_one(row) else ()
        return _Compiled(matcher, row.tobytes(), forced)

    def _get_backend(self) -> GrammarBackend:
        with self._backend_lock:
            if self._backend is None:
                self._backend = self._load_backend()
            return self._backend

    def _pool(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(
                _NUM_THREADS, thread_name_prefix="octavo-grammar")
        return self._threads


def _mask_row(backend: GrammarBackend) -> MaskRow:
    return np.zeros((backend.vocab_size + 31) // 32, np.uint32)


def _mask_of(backend: GrammarBackend, token_id: int) -> bytes:
    row = _mask_row(backend)
    row[token_id // 32] = np.uint32(1 << (token_id % 32))
    return row.tobytes()


def _eos_bits(backend: GrammarBackend) -> list[tuple[int, int]]:
    """By word of a mask, the bits of EOS ids."""
    bits: dict[int, int] = {}
    for token_id in backend.eos_token_ids:
        bits[token_id // 32] = bits.get(token_id // 32, 0) | 1 << (token_id % 32)
    return list(bits.items())


def _allows_one(row: MaskRow) -> bool:
    """Whether a mask allows one token. Only there is anything forced; asking the matcher costs
    half as much as a mask."""
    if np.count_nonzero(row) != 1:
        return False
    word = int(row.max())
    return word & (word - 1) == 0


def _forced(backend: GrammarBackend, matcher: GrammarMatcher) -> tuple[int, ...]:
    """The text that must follow; where an EOS is part of it, what comes before that."""
    return tuple(itertools.takewhile(lambda token_id: token_id not in backend.eos_token_ids,
                                     matcher.forced_tokens()))


def _jumpable(request: EngineCoreRequest) -> Callable[[int], bool]:
    """Which forced tokens may be taken without asking the sampler.

    Not those that the request itself may ban: whether nothing is left to draw, the sampler says.
    """
    params = request.params
    allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
    suspects = {word[-1] for word in request.bad_words_token_ids or ()}
    if params.min_tokens:
        suspects.update(request.eos_token_ids, params.stop_token_ids or ())
    return lambda token_id: (token_id not in suspects
                             and (allowed is None or token_id in allowed))


def no_grammar() -> GrammarManager:
    """The manager of an engine that makes no structured output: refuses what asks for it."""

    def refuse() -> GrammarBackend:
        raise InvalidRequestError("structured_outputs is not supported by this engine: leave it "
                                  "out", param="structured_outputs")

    return GrammarManager(refuse)
