"""Final rotary frequencies."""

import dataclasses

import numpy as np
import pytest

from octavo.models.rope import rope_spec
from octavo.weights.model_file import RopeConfig

PLAIN = RopeConfig(theta=500000.0, dim=64, style="neox")
LLAMA3 = dataclasses.replace(
    PLAIN, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position=8192,
)  # fmt: skip


def test_plain_frequencies() -> None:
    freqs = rope_spec(PLAIN).inv_freq
    np.testing.assert_allclose(freqs, 500000.0 ** (-np.arange(0, 64, 2) / 64), rtol=1e-15)


def test_linear_scaling_divides_positions() -> None:
    config = dataclasses.replace(PLAIN, scaling="linear", factor=4.0)
    np.testing.assert_allclose(
        np.array(rope_spec(config).inv_freq) * 4, rope_spec(PLAIN).inv_freq, rtol=1e-15
    )


def test_divisors_from_the_file() -> None:
    divisors = tuple(np.linspace(1, 8, 32))
    config = dataclasses.replace(PLAIN, freqs=divisors)
    np.testing.assert_allclose(
        np.array(rope_spec(config).inv_freq) * divisors, rope_spec(PLAIN).inv_freq, rtol=1e-15
    )


def test_llama3_scaling_by_wavelength() -> None:
    """The definition by wavelength: short ones stay, long ones stretch, smooth between."""
    plain = np.array(rope_spec(PLAIN).inv_freq)
    scaled = np.array(rope_spec(LLAMA3).inv_freq)
    wavelength = 2 * np.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192 / 1
    between = ~short & ~long
    assert short.sum() > 5 and long.sum() > 5 and between.sum() > 2
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-15)
    smooth = (8192 / wavelength[between] - 1.0) / (4.0 - 1.0)
    expected = (1 - smooth) * plain[between] / 8 + smooth * plain[between]
    np.testing.assert_allclose(scaled[between], expected, rtol=1e-12)


def test_unknown_scaling_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        rope_spec(dataclasses.replace(PLAIN, scaling="yarn"))
