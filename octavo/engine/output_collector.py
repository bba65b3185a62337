"""OutputCollector: hands the outputs of one request from the reader to its one consumer.

Knows asyncio, and nothing of the engine.
"""

import asyncio

from octavo.engine.outputs import RequestMetrics, RequestOutput
from octavo.errors import OctavoError


class OutputCollector:
    """The newest output of one request; what the consumer has not fetched is merged into it.

    ended: the request is over (finished or failed), whether or not that was fetched.
    metrics: its times and counts so far.
    """

    metrics: RequestMetrics

    def __init__(self) -> None:
        self.ended = False
        self._output: RequestOutput | None = None
        self._error: OctavoError | None = None
        self._event = asyncio.Event()
        self._closed = False

    def put(self, output: RequestOutput | OctavoError) -> None:
        self.ended = isinstance(output, OctavoError) or output.finished
        if self._closed:
            return
        if isinstance(output, OctavoError):
            self._error = output
        elif self._output is None or output.kind != "delta":
            self._output = output
        else:
            self._output.merge_delta(output)
        self._event.set()

    async def get(self) -> RequestOutput:
        """Waits for news. Raises the error that ended the request, after what came before it."""
        await self._event.wait()
        if self._output is not None:
            output, self._output = self._output, None
            if self._error is None:
                self._event.clear()
            return output
        assert self._error is not None
        # a fresh object each time: exceptions carry their traceback
        error = type(self._error)(self._error.message, param=self._error.param)
        raise error

    def close(self) -> None:
        """Nobody fetches any more."""
        self._closed = True
        self._output = None
