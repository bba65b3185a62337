"""Statistics of measured samples. Pure functions of numbers; knows nothing of what they measure."""

import dataclasses
import math
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(slots=True, frozen=True)
class Summary:
    """Mean, median, sample standard deviation and extremes of some samples; NaN without any."""

    count: int
    mean: float
    median: float
    std: float
    minimum: float
    maximum: float


def summarize(samples: Sequence[float]) -> Summary:
    """The summary of the samples, in their unit. std is 0 for a single sample."""
    if not samples:
        nan = math.nan
        return Summary(0, nan, nan, nan, nan, nan)
    std = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return Summary(len(samples), statistics.fmean(samples), statistics.median(samples), std,
                   min(samples), max(samples))


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` % of the samples lie, interpolated linearly between the two
    nearest ranks; NaN without samples. Raises ValueError outside 0 .. 100."""
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}: give 0 to 100")
    if not samples:
        return math.nan
    ordered = sorted(samples)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Two of the samples, between which the median of what they were drawn from lies with at least
    this confidence, whatever the distribution; the extremes where they are too few for that.

    The number of samples below the median is binomial (n, 1/2): the order statistics' interval,
    see H. A. David and H. N. Nagaraja, Order Statistics, section 7.1.
    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("the median of no samples has no interval")
    ordered = sorted(samples)
    count = len(ordered)
    left_out, below = 0, 0.5**count  # below: P(fewer than left_out + 1 samples under the median)
    while left_out + 1 < (count + 1) // 2:
        if 2 * below > 1 - confidence:
            break
        left_out += 1
        below += math.comb(count, left_out) * 0.5**count
    first = max(left_out - 1, 0)
    return ordered[first], ordered[count - 1 - first]


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """median(ours) / median(theirs); NaN when either is missing or theirs is 0."""
    if not ours or not theirs:
        return math.nan
    below = statistics.median(theirs)
    return statistics.median(ours) / below if below else math.nan


def load_average() -> tuple[float, float, float] | None:
    """The machine's load averages (1, 5, 15 minutes), None where there are none. A measurement
    without them cannot be judged."""
    import os

    try:
        return os.getloadavg()
    except (AttributeError, OSError):
        return None
