"""Workloads: what is asked, in which lengths, and for traces when. Token ids, no text.

random and prefix repetition have vLLM's parameters; traces are the Azure LLM inference CSV files
and Mooncake's JSON lines. Knows no engine and no wire.
"""

import csv
import dataclasses
import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from octavo.errors import ConfigError

# tokens of the block one Mooncake hash id stands for
TRACE_BLOCK = 512
MAX_TRACE_BYTES = 1 << 30
_AZURE_COLUMNS = {"contexttokens", "generatedtokens"}


@dataclasses.dataclass(slots=True, frozen=True)
class BenchRequest:
    """One request. arrival_s: seconds from the start of the run, where a trace says so."""

    prompt_token_ids: list[int]
    max_tokens: int
    arrival_s: float | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class Vocabulary:
    """Which ids prompts are drawn from: [first, size)."""

    size: int
    first: int = 0

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """Random ids, uniformly."""
        return [int(i) for i in rng.integers(self.first, self.size, count)]


def random_requests(vocabulary: Vocabulary, *, num_prompts: int, input_len: int, output_len: int,
                    range_ratio: float = 0.0, prefix_len: int = 0,
                    seed: int = 0) -> list[BenchRequest]:
    """Prompts of random ids behind one shared random prefix of prefix_len.

    Lengths are uniform in [len * (1 - range_ratio), len * (1 + range_ratio)]. Raises ConfigError.
    """
    _check_positive(num_prompts=num_prompts, input_len=input_len, output_len=output_len)
    if not 0 <= range_ratio < 1:
        raise ConfigError(f"random_range_ratio is {range_ratio}: give 0 to below 1",
                          param="random_range_ratio")
    rng = np.random.default_rng(seed)
    prefix = vocabulary.draw(rng, prefix_len)

    def length(mean: int) -> int:
        low, high = round(mean * (1 - range_ratio)), round(mean * (1 + range_ratio))
        return max(1, int(rng.integers(low, high + 1)))

    return [BenchRequest(prefix + vocabulary.draw(rng, length(input_len)), length(output_len))
            for _ in range(num_prompts)]


def prefix_repetition_requests(vocabulary: Vocabulary, *, num_prompts: int, num_prefixes: int,
                               prefix_len: int, suffix_len: int, output_len: int,
                               seed: int = 0) -> list[BenchRequest]:
    """num_prefixes shared prefixes, each under an equal share of the prompts, own suffixes; in
    random order. Raises ConfigError."""
    _check_positive(num_prompts=num_prompts, prefix_repetition_num_prefixes=num_prefixes,
                    prefix_repetition_prefix_len=prefix_len,
                    prefix_repetition_output_len=output_len)
    rng = np.random.default_rng(seed)
    prefixes = [vocabulary.draw(rng, prefix_len) for _ in range(num_prefixes)]
    requests = [BenchRequest(prefixes[i % num_prefixes] + vocabulary.draw(rng, suffix_len),
                             output_len)
                for i in range(num_prompts)]
    order = rng.permutation(num_prompts)
    return [requests[i] for i in order]


def trace_requests(path: Path, vocabulary: Vocabulary, *, num_prompts: int | None = None,
                   speed: float = 1.0, max_input_len: int | None = None,
                   max_output_len: int | None = None, seed: int = 0) -> list[BenchRequest]:
    """The first num_prompts requests of a trace (all by default), in order of arrival.

    speed: 2 makes requests arrive twice as fast. Lengths above the bounds are cut to them. Equal
    hash ids of a Mooncake trace give equal 512-token blocks, so its prefix sharing is kept.
    Raises ConfigError naming file and line.
    """
    if speed <= 0:
        raise ConfigError(f"trace_speed is {speed}: give a number above 0", param="trace_speed")
    rows = sorted(_rows(path, num_prompts), key=lambda row: row.arrival_s)
    if not rows:
        raise ConfigError(f"{path}: has no requests", param="dataset_path")
    start = rows[0].arrival_s
    rng = np.random.default_rng(seed)
    requests = []
    for row in rows:
        length = min(row.input_len, max_input_len or row.input_len)
        requests.append(BenchRequest(
            _trace_prompt(vocabulary, rng, row.hash_ids, length, seed),
            min(row.output_len, max_output_len or row.output_len),
            (row.arrival_s - start) / speed,
        ))
    return requests


@dataclasses.dataclass(slots=True, frozen=True)
class _Row:
    """One request of a trace."""

    arrival_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


def _trace_prompt(vocabulary: Vocabulary, rng: np.random.Generator, hash_ids: tuple[int, ...],
                  length: int, seed: int) -> list[int]:
    prompt: list[int] = []
    for hash_id in hash_ids:
        if len(prompt) >= length:
            break
        block_rng = np.random.default_rng((seed, hash_id))
        prompt += vocabulary.draw(block_rng, TRACE_BLOCK)
    prompt += vocabulary.draw(rng, max(0, length - len(prompt)))
    return prompt[:length]


def _rows(path: Path, limit: int | None) -> list[_Row]:
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise ConfigError(f"{path}: is larger than {MAX_TRACE_BYTES} bytes",
                              param="dataset_path")
        read = _mooncake_rows if path.suffix in (".jsonl", ".json") else _azure_rows
        rows = []
        for number, row in read(path):
            if row.input_len < 1 or row.output_len < 1:
                raise ConfigError(f"{path}, line {number}: a length below 1", param="dataset_path")
            rows.append(row)
            if limit is not None and len(rows) == limit:
                break
        return rows
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}",
                          param="dataset_path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text", param="dataset_path") from None


def _azure_rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """TIMESTAMP,ContextTokens,GeneratedTokens, in any case and with or without underscores.
    Without time stamps all arrive at once."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = (line for line in file if not line.startswith("#"))
        reader = csv.DictReader(lines)
        names = [name.lower().replace("_", "") for name in reader.fieldnames or ()]
        reader.fieldnames = names
        if not set(names) >= _AZURE_COLUMNS:
            raise ConfigError(f"{path}: is neither an Azure trace (columns ContextTokens and "
                              "GeneratedTokens) nor .jsonl", param="dataset_path")
        for record in reader:
            number = reader.line_num
            try:
                stamp = record.get("timestamp")
                arrival = 0.0 if stamp is None else _seconds(stamp)
                yield number, _Row(arrival, int(record["contexttokens"]),
                                   int(record["generatedtokens"]))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{path}, line {number}: {error}",
                                  param="dataset_path") from None


def _seconds(stamp: str) -> float:
    """Seconds of a time stamp with up to seven decimals."""
    date, _, fraction = stamp.partition(".")
    moment = datetime.datetime.fromisoformat(date).replace(tzinfo=datetime.UTC)
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _mooncake_rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                yield number, _Row(data["timestamp"] / 1000, int(data["input_length"]),
                                   int(data["output_length"]),
                                   tuple(int(i) for i in data.get("hash_ids", ())))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{path}, line {number}: not a trace entry ({type(error).__name__}: {error})",
                    param="dataset_path") from None


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}: give at least 1", param=name)
