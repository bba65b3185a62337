"""OutputProcessor: EngineCoreOutputs -> RequestOutputs. Text, stop strings, logprobs, merging.

Stop strings are found here, because only here is there text: the sample ends for the caller at
once and its id goes back to be aborted in the core. Knows no scheduler and no transport.
"""

import time
from collections.abc import Callable, Iterable

from octavo.core.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    TokenLogprobs,
)
from octavo.engine.input_processor import PreparedRequest
from octavo.engine.metrics import FinishedRequest, FrontEndMetrics
from octavo.engine.outputs import (
    CompletionOutput,
    LengthLimit,
    Logprob,
    OutputKind,
    RequestMetrics,
    RequestOutput,
    TokenLogprobDict,
)
from octavo.errors import OctavoError, error_of
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.stop_strings import StopStringMatcher
from octavo.tokenizer.tokenizer import Tokenizer

Sink = Callable[[RequestOutput | OctavoError], None]


class OutputProcessor:
    """All requests of one front end. One caller at a time."""

    def __init__(self, tokenizer: Tokenizer, metrics: FrontEndMetrics) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._groups: dict[str, _Group] = {}
        self._samples: dict[str, _Sample] = {}  # by core request id

    @property
    def num_requests(self) -> int:
        """User requests that have not finished."""
        return len(self._groups)

    @property
    def num_samples(self) -> int:
        """Core requests that have not finished."""
        return len(self._samples)

    @property
    def request_ids(self) -> list[str]:
        """User requests that have not finished."""
        return list(self._groups)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._groups

    def add(self, prepared: PreparedRequest, *, kind: OutputKind, sink: Sink) -> RequestMetrics:
        """Registers a request; its outputs, or the error that ended it, go to `sink`. Returns its
        times and counts, which go on changing until it is over."""
        assert prepared.request_id not in self._groups
        group = _Group(prepared, kind, sink, self._tokenizer)
        self._groups[prepared.request_id] = group
        for sample in group.samples:
            self._samples[sample.core_id] = sample
        return group.metrics

    def process(self, outputs: EngineCoreOutputs) -> list[str]:
        """Delivers one step's news; returns the core ids to abort (their stop string came)."""
        now = time.monotonic()
        aborts: list[str] = []
        touched: dict[str, _Group] = {}
        num_tokens = 0
        for news in outputs.outputs:
            sample = self._samples.get(news.request_id)
            if sample is None:
                continue  # aborted here; the core had not heard yet
            group = sample.group
            if news.finish_reason == FinishReason.ERROR:
                aborts += self._fail(group, error_of(news.error_type, news.error or "failed"),
                                     but=news.request_id)
                touched.pop(group.request_id, None)
                continue
            self._observe_tokens(sample, news, now)
            before = sample.num_tokens
            sample.take(news)
            group.metrics.num_generation_tokens += sample.num_tokens - before
            num_tokens += sample.num_tokens - before
            if sample.finish_reason is not None:
                self._samples.pop(news.request_id)
                if news.finish_reason is None:
                    aborts.append(news.request_id)
            touched[group.request_id] = group
        for group in touched.values():
            self._deliver(group, now)
        self._metrics.observe_step(num_tokens)
        return aborts

    def _observe_tokens(self, sample: "_Sample", news: EngineCoreOutput, now: float) -> None:
        group = sample.group
        times = group.metrics
        if news.num_cached_tokens is not None and sample.index == 0:
            times.num_cached_tokens = news.num_cached_tokens
        if news.queued_s is not None and times.queued_s is None:
            times.queued_s = news.queued_s
        if news.prefill_s is not None and times.prefill_s is None:
            times.prefill_s = news.prefill_s
        if not news.new_token_ids:
            return
        if times.first_token_time is None:
            times.first_token_time = now
            self._metrics.observe_first_token(
                now - times.arrival_time, times.num_prompt_tokens, times.num_cached_tokens)
        elif sample.last_token_time is not None:
            self._metrics.observe_inter_token(now - sample.last_token_time)
        sample.last_token_time = times.last_token_time = now

    def _deliver(self, group: "_Group", now: float) -> None:
        finished = group.finished
        if finished:
            del self._groups[group.request_id]
            self._metrics.observe_finished(group.finish(now))
        if finished or group.kind != "final":
            output = group.output()
            if output is not None:
                group.sink(output)

    def abort(self, request_ids: Iterable[str], *, silent: bool = False) -> list[str]:
        """Ends requests at once with finish_reason "abort"; returns the core ids to abort."""
        now = time.monotonic()
        core_ids: list[str] = []
        for request_id in request_ids:
            group = self._groups.get(request_id)
            if group is None:
                continue
            for sample in group.samples:
                if self._samples.pop(sample.core_id, None) is not None:
                    core_ids.append(sample.core_id)
                    sample.abort()
            if silent:
                group.sink = _ignore
            self._deliver(group, now)
        return core_ids

    def fail_all(self, error: OctavoError) -> None:
        """The engine is gone: every request ends with this error."""
        for group in list(self._groups.values()):
            self._fail(group, error)

    def fail_older_than(self, seconds: float, error: OctavoError) -> list[str]:
        """Ends requests that arrived longer ago with this error; returns the core ids to abort."""
        before = time.monotonic() - seconds
        late = [g for g in self._groups.values() if g.metrics.arrival_time < before]
        return [core_id for group in late for core_id in self._fail(group, error)]

    def _fail(self, group: "_Group", error: OctavoError, *, but: str | None = None) -> list[str]:
        self._groups.pop(group.request_id, None)
        core_ids = []
        for sample in group.samples:
            if self._samples.pop(sample.core_id, None) is not None and sample.core_id != but:
                core_ids.append(sample.core_id)
            if sample.finish_reason is None:
                sample.finish_reason = FinishReason.ERROR
        self._metrics.observe_finished(group.finish(time.monotonic()))
        group.sink(error)
        return core_ids


def _ignore(_: RequestOutput | OctavoError) -> None:
    """The sink of a caller that has left."""


class _Group:
    """One user request: its samples, and what they share."""

    def __init__(self, prepared: PreparedRequest, kind: OutputKind, sink: Sink,
                 tokenizer: Tokenizer) -> None:
        self.request_id = prepared.request_id
        self.prepared = prepared
        self.kind = kind
        self.sink = sink
        self.tokenizer = tokenizer
        self.prompt_logprobs: list[TokenLogprobDict | None] | None = None
        self._prompt_logprobs_sent = False
        self.metrics = RequestMetrics(prepared.core_requests[0].arrival_time_s,
                                      num_prompt_tokens=len(prepared.prompt_token_ids))
        self.samples = [_Sample(self, r.request_id, r.sample_index)
                        for r in prepared.core_requests]

    @property
    def finished(self) -> bool:
        return all(s.finish_reason is not None for s in self.samples)

    def set_prompt_logprobs(self, entries: list[TokenLogprobs]) -> None:
        decoded = [_logprob_dict(e, self.tokenizer) for e in entries]
        # nothing comes before the first prompt token, so it has no probability
        self.prompt_logprobs = [None, *decoded]

    def output(self) -> RequestOutput | None:
        """What to tell the caller now; None if there is no news (a delta)."""
        delta = self.kind == "delta"
        parts = [s.completion(delta) for s in self.samples if not delta or s.has_news]
        if not parts and not self.finished:
            return None
        prompt_logprobs = self.prompt_logprobs
        if delta and self._prompt_logprobs_sent:
            prompt_logprobs = None
        self._prompt_logprobs_sent = self._prompt_logprobs_sent or prompt_logprobs is not None
        return RequestOutput(
            self.request_id, self.prepared.prompt, self.prepared.prompt_token_ids, parts,
            finished=self.finished, num_cached_tokens=self.metrics.num_cached_tokens,
            prompt_logprobs=prompt_logprobs, metrics=self.metrics, kind=self.kind,
        )

    def finish(self, now: float) -> FinishedRequest:
        """Closes the books of a request that is over."""
        params, times = self.prepared.params, self.metrics
        times.finished_time = now
        times.finish_reasons = [str(s.finish_reason) for s in self.samples]
        started = times.first_token_time is not None
        return FinishedRequest(
            reasons=times.finish_reasons,
            num_prompt_tokens=times.num_prompt_tokens,
            num_generation_tokens=times.num_generation_tokens,
            max_generation_tokens=max(s.num_tokens for s in self.samples),
            num_cached_tokens=times.num_cached_tokens if started else None,
            n=params.n, max_tokens=self.prepared.core_requests[0].max_tokens,
            e2e_s=now - times.arrival_time, queued_s=times.queued_s,
            prefill_s=times.prefill_s, decode_s=times.decode_s,
        )


class _Sample:
    """One sample: its text and tokens so far; of a request told in deltas, those not told yet."""

    def __init__(self, group: _Group, core_id: str, index: int) -> None:
        params = group.prepared.params
        self.group = group
        self.core_id = core_id
        self.index = index
        self.num_tokens = 0
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprobDict] | None = None if params.logprobs is None else []
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.last_token_time: float | None = None
        self._detokenizer: IncrementalDetokenizer | None = None
        if params.detokenize:
            self._detokenizer = IncrementalDetokenizer(
                group.tokenizer, group.prepared.prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens)
        self._matcher: StopStringMatcher | None = None
        if params.stop:
            self._matcher = StopStringMatcher(
                params.stop, include_stop=params.include_stop_str_in_output)
        request = group.prepared.core_requests[index]
        self._stop_ids = {*request.eos_token_ids, *(params.stop_token_ids or ())}
        self._told_tokens = 0
        self._told_finish = False

    def take(self, news: EngineCoreOutput) -> None:
        """Adds the tokens of one step, up to a stop string if one is completed."""
        if news.prompt_logprobs is not None and self.group.prompt_logprobs is None:
            self.group.set_prompt_logprobs(news.prompt_logprobs)
        stopped = news.finish_reason == FinishReason.STOP
        last = len(news.new_token_ids) - 1
        for i, token_id in enumerate(news.new_token_ids):
            self.token_ids.append(token_id)
            self.num_tokens += 1
            if self.logprobs is not None and news.logprobs is not None:
                self._add_logprobs(news.logprobs[i])
            # EOS or a stop id ends the text; it is not part of it unless asked for. The last token
            # of a complete grammar is neither.
            silent = (stopped and i == last and token_id in self._stop_ids
                      and not self._shows_stop_token(news))
            if not silent and self._add_text(token_id):
                return
        if news.finish_reason is not None:
            self._finish(news)

    def _shows_stop_token(self, news: EngineCoreOutput) -> bool:
        params = self.group.prepared.params
        return params.include_stop_str_in_output and news.stop_reason is not None

    def _add_logprobs(self, entry: TokenLogprobs) -> None:
        assert self.logprobs is not None and self.cumulative_logprob is not None
        listed = self.group.prepared.params.logprob_token_ids is not None
        self.logprobs.append(_logprob_dict(entry, self.group.tokenizer, ranked=not listed))
        self.cumulative_logprob += entry.logprob

    def _add_text(self, token_id: int) -> bool:
        """Decodes one token; True if a stop string ended the sample."""
        if self._detokenizer is None:
            return False
        piece = self._detokenizer.push((token_id,))
        # text of the first min_tokens - 1 tokens cannot stop the sample, not even in part
        if self._matcher is None or self.num_tokens < self.group.prepared.params.min_tokens:
            self.text += piece
            return False
        emitted, matched = self._matcher.feed(piece)
        self.text += emitted
        return self._stop_at(matched)

    def _stop_at(self, matched: str | None) -> bool:
        if matched is None:
            return False
        self.finish_reason = FinishReason.STOP
        self.stop_reason = matched
        return True

    def _finish(self, news: EngineCoreOutput) -> None:
        if not self._settle_text():
            self.finish_reason = news.finish_reason
            self.stop_reason = news.stop_reason

    def abort(self) -> None:
        """The sample ends here; text that waited to become a stop string or a character counts."""
        if not self._settle_text():
            self.finish_reason = FinishReason.ABORT

    def _settle_text(self) -> bool:
        """The text is at its end: adds what was held back; True if a stop string is in it."""
        if self._detokenizer is None:
            return False
        rest = self._detokenizer.flush()
        if self._matcher is None:
            self.text += rest
            return False
        for emitted, matched in (self._matcher.feed(rest), self._matcher.flush()):
            self.text += emitted
            if self._stop_at(matched):
                return True
        return False

    @property
    def has_news(self) -> bool:
        return (self.num_tokens > self._told_tokens or bool(self.text)
                or (self.finish_reason is not None and not self._told_finish))

    def _length_limit(self) -> LengthLimit | None:
        if self.finish_reason != FinishReason.LENGTH:
            return None
        prepared = self.group.prepared
        asked = prepared.params.max_tokens
        if asked is not None and self.num_tokens >= asked:
            return "max_tokens"
        # what fits behind the prompt; less than that was drawn if there were no blocks left
        rest = prepared.core_requests[self.index].max_tokens
        return "context" if self.num_tokens >= rest else "kv_cache"

    def completion(self, delta: bool) -> CompletionOutput:
        """This sample as a delta since the last call, or whole."""
        self._told_tokens = self.num_tokens
        self._told_finish = self.finish_reason is not None
        output = CompletionOutput(
            index=self.index, text=self.text, token_ids=self.token_ids, logprobs=self.logprobs,
            cumulative_logprob=self.cumulative_logprob,
            finish_reason=None if self.finish_reason is None else str(self.finish_reason),
            stop_reason=self.stop_reason, seed=self.group.prepared.seed,
            length_limit=self._length_limit(),
        )
        if delta:  # told once, then forgotten
            self.text, self.token_ids = "", []
            self.logprobs = None if self.logprobs is None else []
        elif not self._told_finish:  # ours goes on growing
            self.token_ids = list(self.token_ids)
            self.logprobs = None if self.logprobs is None else list(self.logprobs)
        return output


def _logprob_dict(entry: TokenLogprobs, tokenizer: Tokenizer, *,
                  ranked: bool = True) -> TokenLogprobDict:
    """The token itself first, then the alternatives: the most likely ones, or the listed ids, which
    come without a rank."""
    text = tokenizer.id_to_token_text
    found = {entry.token_id: Logprob(entry.logprob, entry.rank, text(entry.token_id))}
    for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs), start=1):
        if token_id not in found:
            found[token_id] = Logprob(logprob, rank if ranked else None, text(token_id))
    return found
