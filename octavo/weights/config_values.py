"""Typed, checked access to the keys of a model's configuration, with errors that name the key.

Knows nothing of architectures; shared by `gguf_config` and `hf_config`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.weights.mapped_file import load_error

MAX_SIZE = 1 << 31  # no dimension or id of a real model comes near it
MAX_NUMBER = 1e30
_REQUIRED: Any = object()


class ConfigValues:
    """`values`, read from `path`. An absent key or a null takes the default, or is an error."""

    def __init__(self, path: Path, values: Mapping[str, Any], *, prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix

    def get(self, key: str) -> Any:
        """The value as it is, None when absent."""
        return self.values.get(key)

    def size(self, key: str, default: Any = _REQUIRED) -> Any:
        """A positive integer (or the default, returned as it is)."""
        value = self._value(key, default)
        if value is default:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_SIZE:
            raise self.error(key, f"is {value!r}, expected a positive integer")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """A positive finite number as float (or the default, returned as it is)."""
        value = self._value(key, default)
        if value is default:
            return value
        sound = isinstance(value, int | float) and not isinstance(value, bool)
        if not sound or not 0 < value < MAX_NUMBER:
            raise self.error(key, f"is {value!r}, expected a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, expected true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string (or the default, returned as it is)."""
        value = self._value(key, default)
        if value is not default and not isinstance(value, str):
            raise self.error(key, f"is {value!r}, expected a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them, none when absent; -1 is an old way to say none."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or not -1 <= item < MAX_SIZE:
                raise self.error(key, f"is {value!r}, expected a token id or a list of them")
        return tuple(item for item in items if item >= 0)

    def inside(self, key: str, values: Mapping[str, Any]) -> "ConfigValues":
        """The dictionary found under `key`, so that errors name the whole way to a key in it."""
        return ConfigValues(self.path, values, prefix=f"{self._prefix}{key}.")

    def error(
        self, key: str, reason: str, error: type[ModelLoadError] = ModelLoadError
    ) -> ModelLoadError:
        """An error of one line: file, key, reason."""
        if len(reason) > 300:
            reason = reason[:300] + "..."
        return load_error(self.path, f"key {self._prefix}{key}: {reason}", error)

    def unsupported(self, key: str, value: Any, supported: str) -> ModelLoadError:
        """The error for a sound setting that no code here implements."""
        return self.error(key, f"{value!r} is not supported ({supported})", UnsupportedModelError)

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(key, "is missing")
        return default


def check_heads(values: ConfigValues, *, heads: tuple[str, int], kv_heads: tuple[str, int]) -> None:
    """Query heads must be whole groups of KV heads. Each argument is (key, value)."""
    if heads[1] % kv_heads[1]:
        raise values.error(
            kv_heads[0], f"is {kv_heads[1]}, which does not divide {heads[0]} = {heads[1]}"
        )
