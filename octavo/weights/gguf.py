"""Reads GGUF files (version 2 and 3, little-endian, split or whole) through a memory map.

It knows the container only: what a key or a tensor means to a model is `gguf_config`'s business.
Any byte sequence is either read or refused with ModelLoadError; nothing is allocated from a count
that the file has not backed with bytes.

Source of the layout: the GGUF specification in the ggml project's documentation.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.weights.mapped_file import MappedFile, load_error
from octavo.weights.quant_types import (
    OTHER_GGUF_TYPES,
    QUANT_TYPES_BY_ID,
    QuantType,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4  # the format's own limit
MAX_KEY_BYTES = 65535  # the format's own limit
MAX_TENSOR_NAME_BYTES = 1024  # the format says 64; a little room costs nothing
MAX_ARRAY_DEPTH = 8  # arrays of arrays; real files use 1
MIN_KEY_VALUE_BYTES = 13  # length, empty key, type, one byte
MIN_TENSOR_INFO_BYTES = 24  # length, empty name, no dims, type, offset

TYPE_STRING = 8
TYPE_ARRAY = 9
SCALARS = {
    0: ("<B", np.uint8), 1: ("<b", np.int8), 2: ("<H", np.uint16), 3: ("<h", np.int16),
    4: ("<I", np.uint32), 5: ("<i", np.int32), 6: ("<f", np.float32), 7: ("<?", np.bool_),
    10: ("<Q", np.uint64), 11: ("<q", np.int64), 12: ("<d", np.float64),
}  # fmt: skip

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SHARD_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")


class GgufMetadata(Mapping[str, Any]):
    """The key-value part of one file. A value is decoded at first access and then kept.

    Scalars come as int, float, bool or str, arrays as lists. Raises KeyError for an absent key and
    ModelLoadError for a string that is not UTF-8.
    """

    def __init__(self, file: MappedFile, entries: dict[str, tuple[int, int, int]]) -> None:
        self._file = file
        self._entries = entries  # key -> (value type, start of the value, end of the value)
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            value_type, start, _ = self._entries[key]
            try:
                self._decoded[key] = _decode(self._file.buffer, value_type, start)[0]
            except UnicodeDecodeError:
                raise load_error(self._file.path, f"key {key}: a string is not UTF-8") from None
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def array_length(self, key: str) -> int | None:
        """Number of elements, without decoding them; None when the value is no array."""
        value_type, start, _ = self._entries[key]
        if value_type != TYPE_ARRAY:
            return None
        return int(_U64.unpack_from(self._file.buffer, start + 4)[0])

    def encoded(self, key: str) -> bytes:
        """The value as the file holds it: u32 type, then the value. For copying it unchanged."""
        value_type, start, end = self._entries[key]
        return _U32.pack(value_type) + self._file.buffer[start:end]


@dataclass(slots=True, frozen=True)
class GgufTensor:
    """One tensor: where its bytes lie. `shape` is row-major, the file's order reversed."""

    name: str
    shape: tuple[int, ...]
    quant: QuantType
    file: MappedFile
    offset: int
    nbytes: int


@dataclass(slots=True, frozen=True)
class GgufModel:
    """A whole model: the first file's metadata and the tensors of every shard."""

    path: Path
    metadata: GgufMetadata
    tensors: dict[str, GgufTensor]
    files: tuple[MappedFile, ...]


def read_gguf(path: Path) -> GgufModel:
    """Open the file, and every further shard when it is the first of several.

    Raises ModelLoadError (one line: file, tensor or key, reason) for anything that is not a sound,
    complete GGUF model, UnsupportedModelError for element types not read here.
    """
    files: list[MappedFile] = []
    try:
        metadata, tensors = _read_one(path, files)
        shards = _other_shards(path, metadata)
        for number, shard in enumerate(shards, start=1):
            if not shard.exists():
                raise load_error(path, f"shard {shard.name} is missing (expected beside this file)")
            shard_metadata, more = _read_one(shard, files)
            found = shard_metadata.get("split.no", number)
            if found != number:
                raise load_error(shard, f"key split.no: is {found}, but the name says {number}")
            _merge(tensors, more, shard)
        expected = metadata.get("split.tensors.count") if shards else None
        if expected is not None and expected != len(tensors):
            raise load_error(
                path, f"the shards hold {len(tensors)} tensors, split.tensors.count is {expected}"
            )
    except BaseException:
        for file in files:
            file.close()
        raise
    return GgufModel(path, metadata, tensors, tuple(files))


def shard_stem(path: Path) -> str | None:
    """The model's name in front of -00001-of-0000N.gguf, or None for a file of another name."""
    match = _SHARD_NAME.match(path.name)
    return match["stem"] if match else None


def _other_shards(path: Path, metadata: GgufMetadata) -> list[Path]:
    """Paths of shards 2..N. Empty for a whole model; refuses a later shard as the entry."""
    match = _SHARD_NAME.match(path.name)
    count = int(match["count"]) if match else 1
    number = int(match["no"]) - 1 if match else 0
    stated = metadata.get("split.count", count)
    if not isinstance(stated, int) or stated < 0 or (match and stated > 1 and stated != count):
        raise load_error(path, f"key split.count: is {stated!r}, but the name says {count} shards")
    stated_number = metadata.get("split.no", number)
    if not isinstance(stated_number, int):
        raise load_error(path, f"key split.no: is {stated_number!r}, expected an integer")
    if max(count, stated) > 1 and (number != 0 or stated_number != 0):
        first = f"{match['stem']}-00001-of-{count:05}.gguf" if match else "the first shard"
        raise load_error(
            path,
            f"is shard {max(number, stated_number) + 1} of {max(count, stated)}, a later shard of "
            f"a split model; open {first}",
        )
    if stated > 1 and not match:
        raise load_error(
            path,
            f"is shard 1 of {stated}, but its name does not end in -00001-of-{stated:05}.gguf, "
            "so the other shards cannot be found",
        )
    if match is None:
        return []
    stem = match["stem"]
    return [path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1)]


def _merge(tensors: dict[str, GgufTensor], more: dict[str, GgufTensor], shard: Path) -> None:
    for name, tensor in more.items():
        if name in tensors:
            raise load_error(shard, f"tensor {name}: is also in another shard (duplicate name)")
        tensors[name] = tensor


def _read_one(path: Path, files: list[MappedFile]) -> tuple[GgufMetadata, dict[str, GgufTensor]]:
    file = MappedFile(path)
    files.append(file)
    reader = _HeaderReader(file)
    num_tensors, num_entries = reader.read_preamble()
    metadata = reader.read_metadata(num_entries)
    return metadata, reader.read_tensors(num_tensors, _alignment(file, metadata))


def _alignment(file: MappedFile, metadata: GgufMetadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    sound = isinstance(alignment, int) and 0 < alignment <= MAX_ALIGNMENT
    if not sound or alignment & (alignment - 1):
        raise load_error(
            file.path, f"key general.alignment: is {alignment!r}, expected a power of two"
        )
    return int(alignment)


class _HeaderReader:
    """A cursor over one file's header. Every read is checked against the end of the file."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._buffer = file.buffer
        self._end = file.size
        self._at = 0

    def read_preamble(self) -> tuple[int, int]:
        """Check magic and version; return the number of tensors and of key-value pairs."""
        magic = bytes(self._buffer[:4])
        if magic != MAGIC:
            raise self._error(f"not a GGUF file: the magic is {magic!r}, expected {MAGIC!r}")
        self._at = 4
        version = self._u32("the version")
        if version not in VERSIONS:
            if version and version & 0xFFFF == 0:
                raise self._error(
                    "big-endian GGUF file, only little-endian files are read", UnsupportedModelError
                )
            raise self._error(
                f"GGUF version {version} is not supported, only 2 and 3", UnsupportedModelError
            )
        num_tensors = self._u64("the tensor count")
        num_entries = self._u64("the metadata count")
        left = self._end - self._at
        if num_entries * MIN_KEY_VALUE_BYTES + num_tensors * MIN_TENSOR_INFO_BYTES > left:
            raise self._error(
                f"truncated or damaged header: {num_entries} keys and {num_tensors} tensors "
                f"cannot fit in {self._end} bytes"
            )
        return num_tensors, num_entries

    def read_metadata(self, num_entries: int) -> GgufMetadata:
        """Walk over the key-value pairs, noting where each value lies."""
        entries: dict[str, tuple[int, int, int]] = {}
        for index in range(num_entries):
            key = self._string(f"key {index + 1} of {num_entries}", MAX_KEY_BYTES)
            if key in entries:
                raise self._error(f"key {key}: appears twice (duplicate key)")
            value_type = self._u32(f"key {key}")
            start = self._at
            self._skip(value_type, key, 0)
            entries[key] = (value_type, start, self._at)
        return GgufMetadata(self._file, entries)

    def read_tensors(self, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
        """Read the tensor table and check every tensor's place in the data part."""
        infos = [self._tensor_info(i, num_tensors) for i in range(num_tensors)]
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, quant, offset in infos:
            if name in tensors:
                raise self._error(f"tensor {name}: appears twice (duplicate name)")
            if offset % alignment:
                raise self._error(
                    f"tensor {name}: offset {offset} is misaligned, not a multiple of {alignment}"
                )
            count = 1
            for length in shape:
                count *= length
            nbytes = quant.row_bytes(count)
            tensors[name] = GgufTensor(name, shape, quant, self._file, data_start + offset, nbytes)
        self._check_extents(tensors)
        return tensors

    def _check_extents(self, tensors: dict[str, GgufTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda t: t.offset)
        for tensor in ordered:
            if tensor.offset + tensor.nbytes > self._end:
                expected = max(t.offset + t.nbytes for t in ordered)
                raise self._error(
                    f"truncated: tensor {tensor.name} ends at byte "
                    f"{tensor.offset + tensor.nbytes}, beyond the end of the file "
                    f"(size {self._end} bytes, expected at least {expected})"
                )
        end, before = 0, ""
        for tensor in ordered:
            if tensor.nbytes and tensor.offset < end:
                raise self._error(f"tensor {tensor.name}: its data overlaps tensor {before}")
            end, before = max(end, tensor.offset + tensor.nbytes), tensor.name

    def _tensor_info(
        self, index: int, num_tensors: int
    ) -> tuple[str, tuple[int, ...], QuantType, int]:
        name = self._string(f"tensor {index + 1} of {num_tensors}", MAX_TENSOR_NAME_BYTES)
        what = f"tensor {name}"
        num_dims = self._u32(what)
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._error(f"{what}: has {num_dims} dimensions, expected 1 to {MAX_DIMS}")
        shape = tuple(self._u64(what) for _ in range(num_dims))[::-1]
        type_id = self._u32(what)
        offset = self._u64(what)
        quant = QUANT_TYPES_BY_ID.get(type_id)
        if quant is None:
            known = OTHER_GGUF_TYPES.get(type_id)
            names = ", ".join(kind.name for kind in QUANT_TYPES_BY_ID.values())
            label = f"type {known} (id {type_id})" if known else f"unknown type id {type_id}"
            raise self._error(
                f"{what}: {label} is not supported; supported are {names}",
                UnsupportedModelError,
            )
        if shape[-1] % quant.block_size:
            raise self._error(
                f"{what}: rows of {shape[-1]} elements are not whole blocks of "
                f"{quant.block_size} ({quant.name})"
            )
        return name, shape, quant, offset

    def _skip(self, value_type: int, key: str, depth: int) -> None:
        """Move past one value of the given type."""
        if value_type in SCALARS:
            self._advance(struct.calcsize(SCALARS[value_type][0]), key)
        elif value_type == TYPE_STRING:
            self._advance(self._u64(f"key {key}"), key)
        elif value_type == TYPE_ARRAY:
            self._skip_array(key, depth + 1)
        else:
            raise self._error(f"key {key}: unknown value type {value_type}")

    def _skip_array(self, key: str, depth: int) -> None:
        item_type = self._u32(f"key {key}")
        count = self._u64(f"key {key}")
        if item_type in SCALARS:
            self._advance(count * struct.calcsize(SCALARS[item_type][0]), key)
        elif item_type == TYPE_STRING:
            self._skip_strings(count, key)
        elif item_type == TYPE_ARRAY and depth < MAX_ARRAY_DEPTH:
            if count * 12 > self._end - self._at:
                raise self._truncated(f"key {key}")
            for _ in range(count):
                self._skip_array(key, depth + 1)
        else:
            raise self._error(f"key {key}: unknown or too deeply nested array type {item_type}")

    def _skip_strings(self, count: int, key: str) -> None:
        # Vocabularies: a hundred thousand strings on the way to the tensor table, so the loop is
        # bare. Its bound is unpack_from's own check, which fails once the position leaves the file.
        if count * 8 > self._end - self._at:
            raise self._truncated(f"key {key}")
        buffer, at, unpack = self._buffer, self._at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(buffer, at)[0]
        except (struct.error, OverflowError, IndexError):
            raise self._truncated(f"key {key}") from None
        if at > self._end:
            raise self._truncated(f"key {key}")
        self._at = at

    def _advance(self, nbytes: int, key: str) -> None:
        if nbytes > self._end - self._at:
            raise self._truncated(f"key {key}")
        self._at += nbytes

    def _string(self, what: str, limit: int) -> str:
        length = self._u64(what)
        if length > limit:
            raise self._error(f"{what}: a name of {length} bytes, the limit is {limit}")
        if length > self._end - self._at:
            raise self._truncated(what)
        raw = self._buffer[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(f"{what}: the name {raw[:40]!r} is not UTF-8") from None

    def _u32(self, what: str) -> int:
        if self._end - self._at < 4:
            raise self._truncated(what)
        self._at += 4
        return int(_U32.unpack_from(self._buffer, self._at - 4)[0])

    def _u64(self, what: str) -> int:
        if self._end - self._at < 8:
            raise self._truncated(what)
        self._at += 8
        return int(_U64.unpack_from(self._buffer, self._at - 8)[0])

    def _truncated(self, what: str) -> ModelLoadError:
        return self._error(f"truncated: {what} runs beyond the end of the file ({self._end} bytes)")

    def _error(self, reason: str, error: type[ModelLoadError] = ModelLoadError) -> ModelLoadError:
        return load_error(self._file.path, reason, error)


def _decode(buffer: mmap.mmap, value_type: int, at: int) -> tuple[Any, int]:
    """The value at `at` and the position behind it. The header walk has checked the bounds."""
    if value_type in SCALARS:
        layout = SCALARS[value_type][0]
        return struct.unpack_from(layout, buffer, at)[0], at + struct.calcsize(layout)
    if value_type == TYPE_STRING:
        end = at + 8 + _U64.unpack_from(buffer, at)[0]
        return buffer[at + 8 : end].decode(), end
    item_type = _U32.unpack_from(buffer, at)[0]
    count = _U64.unpack_from(buffer, at + 4)[0]
    at += 12
    if item_type in SCALARS:
        values = np.frombuffer(buffer, SCALARS[item_type][1], count, at) if count else np.empty(0)
        return values.tolist(), at + values.nbytes
    items: list[Any] = []
    if item_type == TYPE_STRING:
        unpack = _U64.unpack_from
        for _ in range(count):
            start = at + 8
            at = start + unpack(buffer, at)[0]
            items.append(buffer[start:at].decode())
        return items, at
    for _ in range(count):
        item, at = _decode(buffer, TYPE_ARRAY, at)
        items.append(item)
    return items, at
