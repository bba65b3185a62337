"""Request: built from the wire, and what may stand in for computing it."""

from octavo.core.messages import EngineCoreRequest, FinishReason
from octavo.core.request import Request, RequestStatus
from octavo.core.sampling_params import SamplingParams


def _request(params: SamplingParams, **fields: object) -> Request:
    message = EngineCoreRequest(
        request_id="a",
        prompt_token_ids=[5, 6, 7],
        params=params,
        eos_token_ids=[0],
        seed=1,
        max_tokens=4,
        **fields,  # type: ignore[arg-type]
    )
    return Request.from_message(message, arrival_index=3, now_s=9.0)


def test_from_message_copies_the_prompt_and_keeps_the_fields() -> None:
    request = _request(SamplingParams(stop_token_ids=[8]), bad_words_token_ids=[[1, 2]], priority=2)
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (3, 3, 0)
    request.token_ids.append(9)
    assert request.output_token_ids == [9] and request.num_output_tokens == 1
    assert request.stop_token_ids == {8} and request.bad_words_token_ids == ((1, 2),)
    assert (request.priority, request.arrival_index, request.arrival_time_s) == (2, 3, 9.0)
    assert _request(SamplingParams(), arrival_time_s=4.0).arrival_time_s == 4.0


def test_prompt_logprobs_read_the_cache_only_once_delivered() -> None:
    assert _request(SamplingParams()).reads_prefix_cache
    assert not _request(SamplingParams(skip_reading_prefix_cache=True)).reads_prefix_cache
    request = _request(SamplingParams(prompt_logprobs=0))
    assert not request.reads_prefix_cache
    request.token_ids.append(1)
    assert request.reads_prefix_cache


def test_final_statuses() -> None:
    for reason in FinishReason:
        assert RequestStatus.of_finish_reason(reason).is_finished
    for status in (RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED):
        assert not status.is_finished
