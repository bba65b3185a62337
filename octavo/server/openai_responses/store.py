"""Responses kept in memory, for later requests that go on from one. Bounded; knows no HTTP."""

import collections
import dataclasses
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError

# Bounds of one server, whatever its clients do. A response with its conversation has some
# kilobytes: the second bound is reached only by very long ones.
MAX_RESPONSES = 4096
MAX_BYTES = 64 << 20


class ResponseNotFoundError(InvalidRequestError):
    """No response of that id is kept: it never was, has been deleted, or was the oldest."""

    http_status = 404
    code = "response_not_found"


@dataclasses.dataclass(slots=True, frozen=True)
class StoredResponse:
    """One response.

    Attributes:
        body: the response as JSON.
        conversation: the items it answered, as JSON: those of earlier responses, too.
        output: its own items, as JSON. item_ids: theirs.
    """

    body: bytes
    conversation: bytes
    output: bytes
    item_ids: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.conversation) + len(self.output)

    def input_items(self) -> list[dict[str, Any]]:
        """The items it answered."""
        items: list[dict[str, Any]] = msgspec.json.decode(self.conversation)
        return items

    def output_items(self) -> list[dict[str, Any]]:
        """Its own items."""
        items: list[dict[str, Any]] = msgspec.json.decode(self.output)
        return items


class ResponseStore:
    """The least recently used go first when there are too many, or too many bytes."""

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: collections.OrderedDict[str, StoredResponse] = collections.OrderedDict()
        self._owners: dict[str, str] = {}  # of output items: the response, by item id
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._kept

    def takes(self, num_bytes: int) -> bool:
        """Whether a response of that size can be kept at all."""
        return self._max_responses > 0 and num_bytes <= self._max_bytes

    def put(self, response_id: str, response: StoredResponse) -> None:
        """Keeps it, in the place of one with the same id. One too large for all of the store is
        not kept."""
        self._drop(response_id)
        if not self.takes(response.num_bytes):
            return
        self._kept[response_id] = response
        self._owners |= dict.fromkeys(response.item_ids, response_id)
        self.num_bytes += response.num_bytes
        while len(self._kept) > self._max_responses or self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, response_id: str, *, param: str = "response_id") -> StoredResponse:
        """Raises ResponseNotFoundError naming `param`."""
        found = self._kept.get(response_id)
        if found is None:
            shown = response_id if len(response_id) <= 80 else response_id[:77] + "..."
            raise ResponseNotFoundError(
                f"{param} is {shown!r}: no such response is kept here. Responses are kept in "
                "memory unless store is false, and the oldest go first", param=param)
        self._kept.move_to_end(response_id)
        return found

    def output_item(self, item_id: str) -> dict[str, Any] | None:
        """An item that the model wrote, if its response is kept."""
        owner = self._owners.get(item_id)
        if owner is None:
            return None
        return next(i for i in self.get(owner).output_items() if i["id"] == item_id)

    def delete(self, response_id: str) -> None:
        """Raises ResponseNotFoundError."""
        self.get(response_id)
        self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        gone = self._kept.pop(response_id, None)
        if gone is not None:
            self.num_bytes -= gone.num_bytes
            for item_id in gone.item_ids:
                del self._owners[item_id]
