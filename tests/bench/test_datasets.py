"""Generated workloads, traces and arrival schedules."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from octavo.bench.datasets import (
    TRACE_BLOCK,
    Vocabulary,
    prefix_repetition_requests,
    random_requests,
    trace_requests,
)
from octavo.bench.load import arrival_times
from octavo.errors import ConfigError

_VOCABULARY = Vocabulary(1000, first=17)


def test_random_lengths_and_ids() -> None:
    requests = random_requests(_VOCABULARY, num_prompts=200, input_len=40, output_len=20,
                               range_ratio=0.5, prefix_len=7, seed=3)
    assert len({tuple(r.prompt_token_ids[:7]) for r in requests}) == 1
    lengths = [len(r.prompt_token_ids) - 7 for r in requests]
    assert min(lengths) >= 20 and max(lengths) <= 60 and len(set(lengths)) > 20
    outputs = [r.max_tokens for r in requests]
    assert min(outputs) >= 10 and max(outputs) <= 30 and len(set(outputs)) > 10
    ids = {i for r in requests for i in r.prompt_token_ids}
    assert min(ids) >= 17 and max(ids) < 1000
    again = random_requests(_VOCABULARY, num_prompts=200, input_len=40, output_len=20,
                            range_ratio=0.5, prefix_len=7, seed=3)
    assert again == requests
    fixed = random_requests(_VOCABULARY, num_prompts=5, input_len=40, output_len=20)
    assert {(len(r.prompt_token_ids), r.max_tokens) for r in fixed} == {(40, 20)}


def test_prefix_repetition_shares_prefixes_evenly() -> None:
    requests = prefix_repetition_requests(_VOCABULARY, num_prompts=20, num_prefixes=4,
                                          prefix_len=16, suffix_len=8, output_len=5)
    prefixes = [tuple(r.prompt_token_ids[:16]) for r in requests]
    assert sorted(prefixes.count(p) for p in set(prefixes)) == [5, 5, 5, 5]
    assert len({tuple(r.prompt_token_ids[16:]) for r in requests}) == 20
    assert {(len(r.prompt_token_ids), r.max_tokens) for r in requests} == {(24, 5)}


@pytest.mark.parametrize(("field", "value"), [
    ("num_prompts", 0), ("input_len", 0), ("output_len", 0), ("range_ratio", 1.0),
])
def test_bad_sizes_are_refused(field: str, value: float) -> None:
    options = {"num_prompts": 1, "input_len": 4, "output_len": 4, "range_ratio": 0.0, field: value}
    with pytest.raises(ConfigError, match=field):
        random_requests(_VOCABULARY, **options)  # type: ignore[arg-type]


def test_azure_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                    "2023-11-16 18:15:46.6805900,374,44\n"
                    "2023-11-16 18:15:50.9951690,396,109\n"
                    "2023-11-16 18:15:51.2224670,879,55\n")
    requests = trace_requests(path, _VOCABULARY, speed=2.0, max_input_len=400)
    assert [(len(r.prompt_token_ids), r.max_tokens) for r in requests] == [
        (374, 44), (396, 109), (400, 55)]
    assert [r.arrival_s for r in requests] == pytest.approx([0, 4.314579 / 2, 4.541877 / 2],
                                                            abs=1e-5)
    assert len(trace_requests(path, _VOCABULARY, num_prompts=2)) == 2


def test_trace_without_time_stamps() -> None:
    path = Path(__file__).parents[1] / "data" / "azure_conv_lengths.csv"
    requests = trace_requests(path, _VOCABULARY, num_prompts=10, max_input_len=5)
    assert len(requests) == 10 and {r.arrival_s for r in requests} == {0.0}


def test_mooncake_trace_keeps_shared_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    entries = [{"timestamp": 3000, "input_length": 1500, "output_length": 3, "hash_ids": [0, 1, 2]},
               {"timestamp": 1000, "input_length": 600, "output_length": 4, "hash_ids": [0, 9]},
               {"timestamp": 1000, "input_length": 20, "output_length": 1, "hash_ids": [5]}]
    path.write_text("\n".join(json.dumps(e) for e in entries) + "\n\n")
    requests = trace_requests(path, _VOCABULARY)
    assert [r.arrival_s for r in requests] == [0.0, 0.0, 2.0]
    assert [len(r.prompt_token_ids) for r in requests] == [600, 20, 1500]
    short, other, long = (r.prompt_token_ids for r in requests)
    assert short[:TRACE_BLOCK] == long[:TRACE_BLOCK]
    assert short[TRACE_BLOCK:] != long[TRACE_BLOCK:600] and other != short[:20]


@pytest.mark.parametrize(("name", "text", "reason"), [
    ("a.csv", "x,y\n1,2\n", "neither an Azure trace"),
    ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,no,3\n", "line 2"),
    ("a.csv", "ContextTokens,GeneratedTokens\n0,3\n", "below 1"),
    ("a.csv", "ContextTokens,GeneratedTokens\n", "no requests"),
    ("a.jsonl", '{"timestamp": 1}\n', "line 1"),
    ("a.jsonl", "nonsense\n", "line 1"),
    ("a.jsonl", "[]\n", "line 1"),
    ("a.csv", b"\xff\xfe\x00", "not text"),
])
def test_broken_traces_are_one_line(tmp_path: Path, name: str, text: str | bytes,
                                    reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=reason) as refused:
        trace_requests(path, _VOCABULARY)
    assert str(path) in refused.value.message and "\n" not in refused.value.message


def test_missing_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        trace_requests(tmp_path / "none.csv", _VOCABULARY)


def test_arrivals() -> None:
    assert arrival_times(4, request_rate=math.inf) == [0.0] * 4
    times = arrival_times(2001, request_rate=10.0, seed=1)
    assert times[0] == 0.0 and times[-1] == pytest.approx(200.0)
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert 0.9 < gaps.std() / gaps.mean() < 1.1  # Poisson: as wide as long
    steady = np.diff(arrival_times(2001, request_rate=10.0, burstiness=25.0))
    bursty = np.diff(arrival_times(2001, request_rate=10.0, burstiness=0.25))
    assert steady.std() / steady.mean() < 0.25 and bursty.std() / bursty.mean() > 1.6
    for rate, burstiness in ((0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0),
                             (1.0, math.inf)):
        with pytest.raises(ConfigError):
            arrival_times(3, request_rate=rate, burstiness=burstiness)
