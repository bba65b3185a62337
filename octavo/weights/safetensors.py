"""Reads and writes safetensors files, whole or sharded behind an index, through a memory map.

It knows the container only: not what a tensor means. Raw access without a framework's dtypes is
what the library of the same name does not give for bfloat16. Header fields are never trusted:
every range is checked against the file.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from octavo.errors import ModelLoadError
from octavo.weights.mapped_file import MappedFile, load_error

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_INDEX_BYTES = 100_000_000
MAX_RANK = 8

DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # the dtypes weights are read in
_OTHER_DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class SafeTensor:
    """One tensor: where its bytes lie. `dtype` is the file's word for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: MappedFile
    offset: int
    nbytes: int


def read_safetensors_folder(
    folder: Path,
) -> tuple[dict[str, SafeTensor], tuple[MappedFile, ...]]:
    """Every tensor of the folder's model, by its name in the file.

    With an index, only the files it names are read and only the tensors it lists are taken;
    without one, model.safetensors, or the folder's only .safetensors file (GPTQ's tools put the
    bits in its name). Raises ModelLoadError naming file, tensor and reason.
    """
    files: list[MappedFile] = []
    try:
        if (folder / INDEX_FILE).exists():
            tensors = _read_indexed(folder, files)
        elif (folder / SINGLE_FILE).exists():
            tensors = read_safetensors(_opened(folder / SINGLE_FILE, files))
        elif len(others := list(folder.glob("*.safetensors"))) == 1:
            tensors = read_safetensors(_opened(others[0], files))
        else:
            raise load_error(folder, f"{SINGLE_FILE} (or {INDEX_FILE}) is missing")
    except BaseException:
        for file in files:
            file.close()
        raise
    return tensors, tuple(files)


def read_safetensors(file: MappedFile) -> dict[str, SafeTensor]:
    """The tensors of one mapped file. Raises ModelLoadError for anything unsound."""
    if file.size < 8:
        raise load_error(file.path, f"truncated: {file.size} bytes, not even a header length")
    length = struct.unpack_from("<Q", file.buffer, 0)[0]
    if length > MAX_HEADER_BYTES:
        raise load_error(file.path, f"not a safetensors file: its header would have {length} bytes")
    if 8 + length > file.size:
        raise load_error(
            file.path, f"truncated: {file.size} bytes, the header alone needs {8 + length}"
        )
    header = parse_json(file.path, file.buffer[8 : 8 + length], "the header")
    tensors = {
        name: _tensor(file, name, entry, 8 + length)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    _check_extents(file, tensors)
    return tensors


def parse_json(path: Path, text: bytes, what: str) -> dict[str, Any]:
    """A JSON object, keys unique. Raises ModelLoadError."""
    try:
        parsed = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as err:
        raise load_error(path, f"{what} is not valid JSON: {str(err)[:120]}") from None
    if not isinstance(parsed, dict):
        raise load_error(path, f"{what} is not a JSON object")
    return parsed


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], np.ndarray]]
) -> None:
    """Write name -> (dtype, shape, array of the tensor's bytes). For tools and tests."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype, "shape": list(shape), "data_offsets": [at, at + data.nbytes],
        }  # fmt: skip
        at += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(np.ascontiguousarray(data).tobytes())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"{twice!r} appears twice (duplicate name)")
    return found


def _opened(path: Path, files: list[MappedFile]) -> MappedFile:
    files.append(MappedFile(path))
    return files[-1]


def _read_indexed(folder: Path, files: list[MappedFile]) -> dict[str, SafeTensor]:
    index_path = folder / INDEX_FILE
    if index_path.stat().st_size > MAX_INDEX_BYTES:
        raise load_error(index_path, f"is larger than {MAX_INDEX_BYTES} bytes")
    weight_map = parse_json(index_path, index_path.read_bytes(), "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise load_error(index_path, "key weight_map: is missing or not a dictionary")
    shards: dict[str, dict[str, SafeTensor]] = {}
    tensors: dict[str, SafeTensor] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise load_error(
                index_path, f"tensor {name}: {shard!r} is not a file name in this folder"
            )
        if shard not in shards:
            if not (folder / shard).exists():
                raise load_error(index_path, f"shard {shard} is missing (the index names it)")
            shards[shard] = read_safetensors(_opened(folder / shard, files))
        if name not in shards[shard]:
            raise load_error(
                folder / shard, f"tensor {name}: is missing (the index says it is in this file)"
            )
        tensors[name] = shards[shard][name]
    return tensors


def _tensor(file: MappedFile, name: str, entry: Any, data_start: int) -> SafeTensor:
    def bad(reason: str) -> ModelLoadError:
        return load_error(file.path, f"tensor {name}: {reason}")

    if not isinstance(entry, dict):
        raise bad("its header entry is not a JSON object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str):
        raise bad(f"dtype is {dtype!r}, expected a name")
    if not _sizes(shape) or len(shape) > MAX_RANK:
        raise bad(f"shape is {shape!r}, expected a list of sizes")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise bad(f"data_offsets is {offsets!r}, expected [begin, end]")
    begin, end = offsets
    if data_start + end > file.size:
        raise bad(
            f"truncated: its data ends at byte {data_start + end}, beyond the end of the file "
            f"(size {file.size} bytes)"
        )
    count = 1
    for length in shape:
        count *= length
    item = DTYPE_BYTES.get(dtype) or _OTHER_DTYPE_BYTES.get(dtype)
    if item is not None and count * item != end - begin:
        raise bad(f"{dtype} {shape} needs {count * item} bytes, data_offsets give {end - begin}")
    return SafeTensor(name, tuple(shape), dtype, file, data_start + begin, end - begin)


def _sizes(items: Any) -> TypeGuard[list[int]]:
    return isinstance(items, list) and all(type(i) is int and 0 <= i < 1 << 60 for i in items)


def _check_extents(file: MappedFile, tensors: dict[str, SafeTensor]) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.nbytes and tensor.offset < end:
            raise load_error(file.path, f"tensor {tensor.name}: its data overlaps tensor {before}")
        end, before = max(end, tensor.offset + tensor.nbytes), tensor.name
