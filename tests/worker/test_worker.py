"""Worker: the capacity of a step, and what happens where the memory ends."""

from pathlib import Path
from typing import Any

import pytest

from octavo.config import CacheSection, EngineConfig, ModelSection, SchedulerSection
from octavo.core.sampling_params import MAX_LOGIT_BIAS
from octavo.errors import ConfigError
from octavo.testing.toy_model import tiny_llama
from octavo.worker import worker as worker_module
from octavo.worker.worker import Worker, step_limits


def config_of(path: str = "none", **scheduler: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelSection(path=path, served_model_names=("m",), max_model_len=8192,
                           backend="reference"),
        cache=CacheSection(num_blocks=8),
        scheduler=SchedulerSection(**scheduler))


def test_a_step_has_room_for_the_most_its_requests_may_bring() -> None:
    limits = step_limits(config_of(max_num_seqs=100, max_num_batched_tokens=64), 49152)
    assert limits.max_tokens == limits.max_rows == 100
    assert limits.max_mask_rows == limits.max_seqs == 100
    assert limits.max_sparse >= 100 * max(8193, MAX_LOGIT_BIAS)
    assert step_limits(config_of(), 50).max_sparse >= 64 * MAX_LOGIT_BIAS


def test_more_sequences_than_can_be_indexed_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs is 1000000: give at most"):
        step_limits(config_of(max_num_seqs=10**6), 49152)


def test_too_little_memory_is_one_clear_line(tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*args: object, **kwargs: object) -> None:
        raise MemoryError("std::bad_alloc")

    folder = tiny_llama().save(tmp_path / "tiny")
    config = config_of(str(folder), max_num_batched_tokens=12345)
    monkeypatch.setattr(worker_module, "ModelRunner", no_memory)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens 12345 .* give less"):
        Worker.load(config)
