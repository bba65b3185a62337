"""Matrices of AWQ, GPTQ and compressed-tensors folders as rows of 32-column blocks.

Takes the tensors a quantized matrix is stored in and gives what `ModelFile` gives of any other:
an element type and rows of bytes, made one matrix at a time and exactly: w = d * (q - zero), with
zero points as m = -d * zero. It reads no settings (hf_quant_config.py).

Where the layouts come from: AutoAWQ's gemm packing, GPTQModel's documentation of formats v1 and
v2, and the compressed-tensors library's pack-quantized and int-quantized formats.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from octavo.errors import ModelLoadError
from octavo.weights.dequant import dequantize
from octavo.weights.hf_quant_config import WHOLE_ROW, Quantization, Scheme
from octavo.weights.mapped_file import load_error
from octavo.weights.quant_types import QUANT_TYPES
from octavo.weights.safetensors import DTYPE_BYTES, SafeTensor

BLOCK = 32
MAX_THREADS = 16
_ROWS = 256  # of a task; a multiple of the 8 rows that share a word; rows are independent
_WORD = 32  # bits
_INTEGERS = {"I32": "<i4", "I64": "<i8", "I8": "i1"}
# AWQ's word holds eight matrix rows: nibble i is row _AWQ_ORDER[i].
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

# The tensors beside `.weight` that make up a matrix, by method.
PARTS = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "compressed-tensors": (
        "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
    ),
}  # fmt: skip

_Codes = Callable[[int, int], np.ndarray]  # (first row, end) -> uint8 [rows, columns]


class QuantizedMatrix:
    """One matrix of `shape` [out, in], opened from its parts. Safe to read from threads.

    `quant` is its element type: Q4_0 or Q8_0 where the scales are exact in float16 and there are
    no zero points, else one of the INT types, else (`is_dequantized`) F32, where a group's columns
    do not lie in whole blocks. `nbytes` is the size in the file. Raises ModelLoadError naming the
    tensor for parts that are missing, of another type or shape, or hold impossible values.
    """

    def __init__(
        self,
        module: str,
        parts: Mapping[str, SafeTensor],
        *,
        shape: tuple[int, int],
        quantization: Quantization,
    ) -> None:
        self.shape = shape
        self.nbytes = sum(part.nbytes for part in parts.values())
        self._parts = parts
        reader = _Reader(module, parts, shape, quantization)
        opened = {"awq": _open_awq, "gptq": _open_gptq}.get(quantization.method, _open_compressed)
        self._codes, self._scales, self._zeros, bits = opened(reader)
        self._middle = 1 << (bits - 1)
        scales = self._scales()
        if not np.isfinite(scales).all():
            raise reader.error(reader.scale_name, "has values that are not finite")
        self._group_of = reader.group_of(scales.shape[1])
        starts = self._group_of[::BLOCK]
        whole = shape[1] % BLOCK == 0 and bool((np.repeat(starts, BLOCK) == self._group_of).all())
        self.is_dequantized = not whole
        zeros = self._zeros()
        self._has_min = zeros is not None and not bool((zeros == self._middle).all())
        self.quant = "F32"
        if whole:
            half = not self._has_min and _is_half(scales)
            self.quant = f"Q{bits}_0" if half else f"INT{bits}" + ("_MIN" if self._has_min else "")

    def rows(self) -> np.ndarray:
        """uint8 [out, bytes_per_row] of element type `quant`; made anew at every call."""
        scales, zeros = self._scales(), self._zeros() if self._has_min else None
        out, columns = self.shape
        result = np.empty((out, QUANT_TYPES[self.quant].row_bytes(columns)), np.uint8)

        def make(start: int) -> None:
            stop = min(start + _ROWS, out)
            codes = self._codes(start, stop)
            zero = None if zeros is None else zeros[start:stop]
            encode = self._floats if self.is_dequantized else self._blocks
            encode(codes, scales[start:stop], zero, result[start:stop])

        with ThreadPoolExecutor(_num_threads()) as pool:
            list(pool.map(make, range(0, out, _ROWS)))
        return result

    def release(self) -> None:
        """See ModelFile."""
        for part in self._parts.values():
            part.file.release(part.offset, part.nbytes)

    def _floats(
        self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, out: np.ndarray
    ) -> None:
        zero = np.float32(self._middle) if zeros is None else zeros[:, self._group_of]
        values = (codes.astype(np.float32) - zero) * scales[:, self._group_of]
        out[...] = values.astype(np.float32, copy=False).view(np.uint8)

    def _blocks(
        self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, out: np.ndarray
    ) -> None:
        kind = QUANT_TYPES[self.quant]
        starts = self._group_of[::BLOCK]
        blocks = out.reshape(len(codes), len(starts), kind.block_bytes)
        head = scales.astype(np.float16) if kind.name in ("Q4_0", "Q8_0") else scales
        heads = [head[:, starts, None]]
        if zeros is not None:
            heads.append(-(scales * zeros)[:, starts, None])
        packed = np.ascontiguousarray(np.concatenate(heads, axis=2)).view(np.uint8)
        size = packed.shape[2]
        blocks[:, :, :size] = packed
        if self._middle == 8:
            halves = codes.reshape(len(codes), len(starts), 2, BLOCK // 2)
            blocks[:, :, size:] = halves[:, :, 0] | (halves[:, :, 1] << 4)
        else:
            flip = np.uint8(0 if self._has_min else 0x80)  # signed bytes where zero is the middle
            blocks[:, :, size:] = codes.reshape(len(codes), len(starts), BLOCK) ^ flip


_Scales = Callable[[], np.ndarray]  # float32 [rows, groups]
_Zeros = Callable[[], np.ndarray | None]  # the same, None: all are the middle of the codes' range
_Opened = tuple[_Codes, _Scales, _Zeros, int]


class _Reader:
    """The parts of one matrix, each checked when it is asked for."""

    def __init__(
        self, module: str, parts: Mapping[str, SafeTensor], shape: tuple[int, int],
        quantization: Quantization,
    ) -> None:  # fmt: skip
        self.module = module
        self.parts = parts
        self.out, self.columns = shape
        self.zero_offset = quantization.zero_offset
        gptq = quantization.method in ("awq", "gptq")
        self.scale_name = "scales" if gptq else "weight_scale"
        self._index_name = "g_idx" if gptq else "weight_g_idx"
        any_part = next(iter(parts.values()))
        self.path: Path = any_part.file.path
        scheme = quantization.scheme_of(module)
        if scheme is None:
            raise load_error(
                self.path, f"tensor {any_part.name}: no group of config_groups targets its module"
            )
        self.scheme: Scheme = scheme

    def error(self, part: str, reason: str) -> ModelLoadError:
        return load_error(self.path, f"tensor {self.module}.{part}: {reason}")

    def tensor(self, part: str, dtypes: tuple[str, ...]) -> SafeTensor:
        found = self.parts.get(part)
        if found is None:
            raise self.error(part, "is missing")
        if found.dtype not in dtypes:
            raise self.error(part, f"dtype is {found.dtype}, expected {' or '.join(dtypes)}")
        return found

    def check_shape(self, part: str, *shapes: tuple[int, ...]) -> None:
        found = self.parts[part].shape
        if found not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(
                part,
                f"has shape {list(found)}, expected {expected} for a matrix of "
                f"{self.out} x {self.columns}",
            )

    def integers(self, part: str, dtypes: tuple[str, ...] = ("I32",)) -> np.ndarray:
        found = self.tensor(part, dtypes)
        data = found.file.view(found.offset, found.nbytes)
        return data.view(_INTEGERS[found.dtype]).reshape(found.shape)

    def words(self, part: str, *shapes: tuple[int, ...]) -> np.ndarray:
        """uint8 [..., 4 bytes of a word] of an I32 tensor."""
        found = self.tensor(part, ("I32",))
        self.check_shape(part, *shapes)
        return found.file.view(found.offset, found.nbytes).reshape(*found.shape, 4)

    def scales(self) -> np.ndarray:
        """float32 of the scales, in the file's shape."""
        found = self.tensor(self.scale_name, tuple(DTYPE_BYTES))
        data = found.file.view(found.offset, found.nbytes).reshape(1, -1)
        count = data.size // DTYPE_BYTES[found.dtype]
        return dequantize(data, found.dtype, count).reshape(found.shape)

    def bits_of(self, part: str, words: int, total: int) -> int:
        """Bits of a code, from how many words hold `total` of them; the settings must agree."""
        bits = next((b for b in (4, 8) if words == -(-total * b // _WORD)), None)
        asked = self.scheme.bits
        if bits is None or asked not in (None, bits):
            wanted = f"{asked}" if asked is not None else "4 or 8"
            raise self.error(
                part,
                f"has shape {list(self.parts[part].shape)}, which is not {wanted} bits a weight "
                f"for a matrix of {self.out} x {self.columns}",
            )
        return bits

    def num_groups(self, axis: int) -> int:
        """Groups of a row: as the scales have it, which the settings must agree with."""
        shape = self.tensor(self.scale_name, tuple(DTYPE_BYTES)).shape
        found = shape[axis] if len(shape) == 2 else 0
        size = self.scheme.group_size
        asked = None
        if size is not None:
            asked = 1 if size == WHOLE_ROW else -(-self.columns // size)
        if found < 1 or found > self.columns or asked not in (None, found):
            groups = f"{asked} group{'' if asked == 1 else 's'}" if asked else "groups"
            raise self.error(
                self.scale_name, f"has shape {list(shape)}, expected {groups} for a matrix of "
                f"{self.out} x {self.columns}",
            )  # fmt: skip
        return found

    def group_of(self, groups: int) -> np.ndarray:
        """int [columns]: the group of each column."""
        part = self._index_name
        if part in self.parts:
            index = self.integers(part, ("I32", "I64"))
            self.check_shape(part, (self.columns,))
            if index.size and not (index.min() >= 0 and index.max() < groups):
                raise self.error(part, f"has values outside 0 to {groups - 1}, the scales' groups")
            return index.astype(np.intp)
        size = self.scheme.group_size
        if size is None:
            if self.columns % groups:
                raise self.error(part, f"is missing, and {groups} groups do not divide the columns")
            size = self.columns // groups
        return np.arange(self.columns) // (self.columns if size == WHOLE_ROW else size)


def _open_awq(reader: _Reader) -> _Opened:
    """qweight I32 [in, out / 8], qzeros I32 [groups, out / 8], scales [groups, out]."""
    words, groups = -(-reader.out // 8), reader.num_groups(0)
    reader.check_shape("scales", (groups, reader.out))
    codes = reader.words("qweight", (reader.columns, words))
    zeros = reader.words("qzeros", (groups, words))

    def read_codes(start: int, stop: int) -> np.ndarray:
        return _awq_nibbles(codes[:, start // 8 : -(-stop // 8)]).T[: stop - start]

    def read_zeros() -> np.ndarray:
        return _awq_nibbles(zeros).T[: reader.out].astype(np.float32)

    return read_codes, lambda: np.ascontiguousarray(reader.scales().T), read_zeros, 4


def _awq_nibbles(words: np.ndarray) -> np.ndarray:
    """uint8 [n, words, 4] -> [n, words * 8] with the nibbles in the rows' order."""
    result = np.empty((*words.shape[:2], 8), np.uint8)
    result[:, :, _AWQ_ORDER[0::2]] = words & 15
    result[:, :, _AWQ_ORDER[1::2]] = words >> 4
    return result.reshape(len(words), -1)


def _open_gptq(reader: _Reader) -> _Opened:
    """qweight I32 [in * bits / 32, out], qzeros I32 [groups, out * bits / 32], scales
    [groups, out]. The first code of a word is in its lowest bits.

    In v1 what is stored is a zero point minus one, taken from whole words: a zero of 0 borrows
    from the codes above it, and one added to every code of the word brings all of them back.
    """
    found = reader.tensor("qweight", ("I32",))
    bits = reader.bits_of("qweight", found.shape[0] if len(found.shape) == 2 else 0, reader.columns)
    per_word = _WORD // bits
    codes = reader.words("qweight", (-(-reader.columns // per_word), reader.out))
    groups = reader.num_groups(0)
    reader.check_shape("scales", (groups, reader.out))
    stored = reader.words("qzeros", (groups, -(-reader.out // per_word)))
    step = np.uint32(reader.zero_offset * (0x11111111 if bits == 4 else 0x01010101))

    def read_codes(start: int, stop: int) -> np.ndarray:
        packed = np.ascontiguousarray(codes[:, start:stop].transpose(1, 0, 2))
        return _low_first(packed.reshape(stop - start, -1), bits)[:, : reader.columns]

    def read_zeros() -> np.ndarray:
        words = np.ascontiguousarray(stored).view("<u4") + step
        codes = _low_first(words.view(np.uint8).reshape(groups, -1), bits)
        return codes[:, : reader.out].T.astype(np.float32)

    return read_codes, lambda: np.ascontiguousarray(reader.scales().T), read_zeros, bits


def _open_compressed(reader: _Reader) -> _Opened:
    """weight_packed I32 [out, in * bits / 32], or weight I8 [out, in]; weight_scale [out, groups]
    ([1] for one a tensor); weight_zero_point as the scales, packed along the rows or I8.

    Packed codes have half their range added, which makes them unsigned.
    """
    if "weight_packed" in reader.parts:
        found = reader.tensor("weight_packed", ("I32",))
        words = found.shape[1] if len(found.shape) == 2 else 0
        bits = reader.bits_of("weight_packed", words, reader.columns)
        packed = reader.words("weight_packed", (reader.out, words)).reshape(reader.out, -1)
        if "weight_shape" in reader.parts:
            claimed = reader.integers("weight_shape", ("I64", "I32")).reshape(-1).tolist()
            if claimed != [reader.out, reader.columns]:
                raise reader.error(
                    "weight_shape", f"says {claimed}, expected {[reader.out, reader.columns]}"
                )

        def read_codes(start: int, stop: int) -> np.ndarray:
            return _low_first(packed[start:stop], bits)[:, : reader.columns]
    else:
        bytes_ = reader.integers("weight", ("I8",))
        reader.check_shape("weight", (reader.out, reader.columns))
        if reader.scheme.bits == 4 and bytes_.size and (bytes_.min() < -8 or bytes_.max() > 7):
            raise reader.error("weight", "has values outside -8 to 7, though num_bits is 4")
        bits = reader.scheme.bits or 8

        def read_codes(start: int, stop: int) -> np.ndarray:
            return _unsigned(bytes_[start:stop], bits)

    scales = _compressed_scales(reader)
    return read_codes, scales, _compressed_zeros(reader, bits), bits


def _compressed_scales(reader: _Reader) -> _Scales:
    shape = reader.tensor("weight_scale", tuple(DTYPE_BYTES)).shape
    one = reader.scheme.group_size == WHOLE_ROW and shape in ((), (1,), (1, 1))
    if not one and shape != (reader.out,):
        reader.check_shape("weight_scale", (reader.out, reader.num_groups(1)))
    groups = 1 if one or len(shape) < 2 else shape[1]

    def read() -> np.ndarray:
        values = reader.scales()
        return np.broadcast_to(values.reshape(-1, groups), (reader.out, groups))

    return read


def _compressed_zeros(reader: _Reader, bits: int) -> _Zeros:
    part = "weight_zero_point"
    if part not in reader.parts:
        if reader.scheme.symmetric is False:
            raise reader.error(part, "is missing, and the settings say symmetric: false")
        return lambda: None
    shape = reader.parts["weight_scale"].shape
    groups = shape[1] if len(shape) == 2 else 1
    found = reader.tensor(part, ("I8", "I32"))
    if found.dtype == "I8":
        reader.check_shape(part, shape)
        plain = reader.integers(part, ("I8",)).reshape(-1, groups)
        return lambda: np.broadcast_to(
            _unsigned(plain, bits).astype(np.float32), (reader.out, groups)
        )
    per_word = _WORD // bits
    words = reader.words(part, (-(-reader.out // per_word), groups))

    def read() -> np.ndarray:
        by_group = np.ascontiguousarray(words.transpose(1, 0, 2)).reshape(groups, -1)
        return _low_first(by_group, bits)[:, : reader.out].T.astype(np.float32)

    return read


def _unsigned(values: np.ndarray, bits: int) -> np.ndarray:
    """int8 codes with half their range added: uint8."""
    return values.view(np.uint8) + np.uint8(1 << (bits - 1))


def _low_first(packed: np.ndarray, bits: int) -> np.ndarray:
    """Codes of a row of little-endian bytes, the first in the lowest bits: uint8 [rows, codes]."""
    if bits == 8:
        return packed
    result = np.empty((packed.shape[0], packed.shape[1], 2), np.uint8)
    result[:, :, 0] = packed & 15
    result[:, :, 1] = packed >> 4
    return result.reshape(packed.shape[0], -1)


def _is_half(scales: np.ndarray) -> bool:
    """Whether every scale is a float16."""
    with np.errstate(over="ignore"):
        return bool((scales.astype(np.float16).astype(np.float32) == scales).all())


def _num_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    return min(MAX_THREADS, os.cpu_count() or 1)
