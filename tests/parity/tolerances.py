"""One table: how far a native kernel may be from the NumPy float64 meaning.

Native against native (generic, AVX-512, row counts) has no tolerance: those tests compare bits.
"""

# (op, stored type) -> (relative, absolute). The stored type is what rounds most: of the output for
# row kernels, of the KV cache for attention (whose reference reads back what was stored, so only
# float32 arithmetic and exp are left).
TOLERANCES: dict[tuple[str, str], tuple[float, float]] = {
    ("norm_rows", "f32"): (3e-6, 1e-7),  # sum of up to 1,100 squares in float32
    ("norm_rows", "bf16"): (4.5e-3, 1e-7),  # half a bf16 step is 2^-8 relative
    ("silu_mul", "f32"): (2e-6, 1e-9),  # exp to 1 ulp, one division, one product
    ("silu_mul", "bf16"): (4.5e-3, 1e-9),
    ("head_norm", "f32"): (2e-6, 1e-7),
    ("rope", "f32"): (1e-6, 1e-6),  # two products of values up to 4 may cancel
    ("attention", "f32"): (2e-5, 2e-5),  # 700 terms, scores up to about 10
    ("attention", "bf16"): (2e-5, 2e-5),
    ("attention", "int8"): (2e-5, 4e-3),  # a weight at a tie may be rounded up or down: 1 / 255
}


def tolerance(op: str, stored: str) -> dict[str, float]:
    """As keyword arguments of np.testing.assert_allclose."""
    relative, absolute = TOLERANCES[op, stored]
    return {"rtol": relative, "atol": absolute}
