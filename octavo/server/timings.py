"""Timings of an answer, under llama.cpp's names, from the times of its engine requests. Pure."""

from collections.abc import Sequence

from octavo.engine.outputs import RequestMetrics
from octavo.server.protocol.responses import Timings


def timings_of(requests: Sequence[RequestMetrics], num_samples: int) -> Timings:
    """So far, or at the end. num_samples: of each request.

    Several prompts: counts are sums, queued_ms and prompt_ms those of the slowest, predicted_ms
    from the first token of any to the last of any. A rate whose time is 0 is 0.
    """
    computed = sum(m.num_prompt_tokens - m.num_cached_tokens
                   for m in requests if m.first_token_time is not None)
    prompt_s = max((m.prefill_s or 0.0 for m in requests), default=0.0)
    predicted = sum(m.num_generation_tokens for m in requests)
    firsts = [m.first_token_time for m in requests if m.first_token_time is not None]
    lasts = [m.last_token_time for m in requests if m.last_token_time is not None]
    predicted_s = max(lasts) - min(firsts) if firsts and lasts else 0.0
    # the first token of a sample belongs to its prompt's time
    behind_first = max(predicted - num_samples * len(firsts), 0)
    return Timings(
        queued_ms=_ms(max((m.queued_s or 0.0 for m in requests), default=0.0)),
        cache_n=sum(m.num_cached_tokens for m in requests),
        prompt_n=computed, prompt_ms=_ms(prompt_s),
        prompt_per_token_ms=_ms(_ratio(prompt_s, computed)),
        prompt_per_second=round(_ratio(computed, prompt_s), 3),
        predicted_n=predicted, predicted_ms=_ms(predicted_s),
        predicted_per_token_ms=_ms(_ratio(predicted_s, behind_first)),
        predicted_per_second=round(_ratio(behind_first, predicted_s), 3))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _ratio(over: float, under: float) -> float:
    return over / under if under else 0.0
