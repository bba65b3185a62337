"""Frames: cut from a stream anywhere, huge news split, garbage refused."""

import random

import msgspec
import pytest

from octavo.core.messages import (
    AbortRequests,
    CoreOutputs,
    EngineCoreOutput,
    EngineCoreOutputs,
    SchedulerStats,
)
from octavo.engine.frames import (
    MAX_FRAME_BYTES,
    FrameReader,
    encode_frame,
    encode_outputs,
    from_core_decoder,
    to_core_decoder,
)
from octavo.errors import EngineDeadError


def test_frames_survive_any_cut() -> None:
    messages = [AbortRequests([f"r{i}" * i]) for i in range(40)]
    stream = b"".join(map(encode_frame, messages))
    rng = random.Random(1)
    reader, found, at = FrameReader(), [], 0
    while at < len(stream):
        size = rng.choice((1, 2, 3, 7, 200))
        found += reader.feed(stream[at : at + size])
        at += size
    assert [to_core_decoder.decode(p) for p in found] == messages


def test_garbage_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(EngineDeadError, match="out of step"):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_huge_news_come_in_several_frames() -> None:
    news = [EngineCoreOutput(request_id=f"r{i}", new_token_ids=list(range(100)))
            for i in range(9)]
    outputs = EngineCoreOutputs(outputs=news, stats=SchedulerStats(num_steps=3))
    (whole,) = encode_outputs(outputs)
    frames = encode_outputs(outputs, split_bytes=len(whole) // 3)
    assert len(frames) > 2 and all(len(f) < len(whole) // 2 for f in frames)
    reader = FrameReader()
    parts = [from_core_decoder.decode(p) for f in frames for p in reader.feed(f)]
    assert all(isinstance(p, CoreOutputs) for p in parts)
    joined = [o for p in parts for o in p.outputs.outputs]  # type: ignore[union-attr]
    assert msgspec.msgpack.encode(joined) == msgspec.msgpack.encode(news)
    stats = [p.outputs.stats for p in parts]  # type: ignore[union-attr]
    assert stats[:-1] == [None] * (len(stats) - 1) and stats[-1] == outputs.stats
