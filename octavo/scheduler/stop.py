"""When a request ends by its tokens. Stop strings are text: the output processor's business."""

from octavo.core.messages import FinishReason
from octavo.core.request import Request


def check_stop(
    request: Request, *, max_model_len: int, kv_capacity_tokens: int
) -> tuple[FinishReason, int | None] | None:
    """Whether the last token of the request ended it: (reason, stop_reason) or None.

    stop_reason is the stop id that matched; EOS has none. Before min_tokens only lengths end it.
    A request longer than the whole KV cache cannot compute its next token: LENGTH, too.
    """
    num_tokens = len(request.token_ids)
    num_output_tokens = num_tokens - request.num_prompt_tokens
    if num_output_tokens >= request.params.min_tokens:
        token_id = request.token_ids[-1]
        if token_id in request.eos_token_ids:
            return FinishReason.STOP, None
        if token_id in request.stop_token_ids:
            return FinishReason.STOP, token_id
    if (
        num_output_tokens >= request.max_tokens
        or num_tokens >= max_model_len
        or num_tokens > kv_capacity_tokens
    ):
        return FinishReason.LENGTH, None
    return None
