"""Native single kernels with their output arrays made, for the parity tests."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

native = pytest.importorskip(
    "octavo._native", reason="the native module is not built (no C++ compiler at install time)"
)
ISAS: list[str] = native.kernel_isas()
KINDS = ("f32", "bf16", "int8")


@dataclasses.dataclass(slots=True, frozen=True)
class Rows:
    """ActRows as arrays; scale, isum, fsum, isum_low [m, k / 32] for int8 only."""

    kind: str
    values: npt.NDArray
    scale: npt.NDArray | None = None
    isum: npt.NDArray | None = None
    fsum: npt.NDArray | None = None
    isum_low: npt.NDArray | None = None

    def arrays(self) -> list[npt.NDArray]:
        every = (self.values, self.scale, self.isum, self.fsum, self.isum_low)
        return [a for a in every if a is not None]

    def as_float(self) -> npt.NDArray[np.float64]:
        if self.kind == "bf16":
            return bf16_to_f32(self.values).astype(np.float64)
        if self.kind == "int8":
            assert self.scale is not None
            with np.errstate(invalid="ignore"):  # 0 times an infinite scale
                return self.values.astype(np.float64) * np.repeat(self.scale, 32, axis=1)
        return self.values.astype(np.float64)


def new_rows(kind: str, m: int, k: int) -> Rows:
    if kind != "int8":
        return Rows(kind, np.zeros((m, k), np.float32 if kind == "f32" else np.uint16))
    groups = (m, k // 32)
    return Rows(kind, np.zeros((m, k), np.int8), np.zeros(groups, np.float32),
                np.zeros(groups, np.int32), np.zeros(groups, np.float32),
                np.zeros(groups, np.int32))


def norm_rows(isa: str, x: npt.NDArray, weight: npt.NDArray | None, kind: str, *,
              add_one: float = 0.0, eps: float = 1e-5) -> Rows:
    rows = new_rows(kind, *x.shape)
    native.norm_rows(isa, x, weight, add_one, eps, *rows.arrays())
    return rows


def silu_mul(isa: str, gate: npt.NDArray, up: npt.NDArray, kind: str) -> Rows:
    rows = new_rows(kind, *gate.shape)
    native.silu_mul(isa, gate, up, *rows.arrays())
    return rows


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Nearest even, for finite values."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def assert_same_bits(a: npt.NDArray, b: npt.NDArray) -> None:
    """Equal bit for bit, except that any NaN equals any NaN."""
    if a.dtype == np.float32:
        a = np.where(np.isnan(a), np.float32(np.nan), a).view(np.uint32)
        b = np.where(np.isnan(b), np.float32(np.nan), b).view(np.uint32)
    np.testing.assert_array_equal(a, b)


def short_scale(absmax: np.ndarray) -> np.ndarray:
    """absmax / 127 in float32, rounded up to 11 significant bits."""
    bits = (absmax / np.float32(127)).astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1FFF)) & np.uint32(0xFFFFE000)).view(np.float32)
