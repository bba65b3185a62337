"""What every chat-like API does with an AnswerPlan: sampling parameters that hold the output to it,
and the reading of deltas. Knows no wire format.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

import msgspec

from octavo.core.sampling_params import SamplingParams
from octavo.engine.outputs import CompletionOutput
from octavo.errors import InvalidRequestError
from octavo.tools.parser import OutputDelta, OutputParser
from octavo.tools.plan import AnswerPlan


async def planned_params(params: SamplingParams, plan: AnswerPlan, prompt: str) -> SamplingParams:
    """The parameters of an output behind this rendered prompt. Raises InvalidRequestError."""
    if plan.is_plain:
        return params
    grammar = await asyncio.to_thread(plan.structured_outputs, prompt, params.structured_outputs)
    skipped = params.skip_special_tokens and not plan.needs_special_tokens
    return msgspec.structs.replace(params, structured_outputs=grammar, skip_special_tokens=skipped)


class DeltaReader:
    """One sample of a stream: its parser, and its tokens up to the end of reasoning."""

    def __init__(self, parser: OutputParser) -> None:
        self.parser = parser
        self.token_ids: list[int] = []

    def take(self, part: CompletionOutput) -> OutputDelta:
        """What a delta of the engine brings."""
        if not self.parser.reasoning_is_over:
            self.token_ids += part.token_ids
        news = self.parser.feed(part.text)
        if part.finish_reason is not None:
            rest = self.parser.finish()
            news.content += rest.content
            news.reasoning += rest.reasoning
            news.calls += rest.calls
        return news


@contextlib.contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside name their field as this API does. names: another API's name -> this
    one's; `a.b` goes with `a`."""
    try:
        yield
    except InvalidRequestError as error:
        given = error.param or ""
        for name, own in names.items():
            if given == name or given.startswith((f"{name}.", f"{name}[")):
                error.param = own + given[len(name):]
                if error.message.startswith(name):
                    error.message = own + error.message[len(name):]
                break
        raise
