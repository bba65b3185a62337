"""Text, stop strings, logprobs and merging, over a scripted engine."""

import random

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.engine.metrics import FrontEndMetrics
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import OutputKind, RequestOutput
from octavo.errors import OctavoError
from octavo.testing.byte_tokenizer import byte_tokenizer
from tests.engine.parts import EOS, ScriptedExecutor, config_of, core_of
from tests.engine.parts import input_processor as make_inputs

TOKENIZER = byte_tokenizer()


def run(script: str | list[int], params: SamplingParams, *, kind: OutputKind = "final",
        core: EngineCore | None = None) -> list[RequestOutput]:
    """Every output of one request; stop strings abort the core request."""
    core = core or core_of(config_of(), ScriptedExecutor(script))
    outputs = OutputProcessor(TOKENIZER, FrontEndMetrics())
    prepared = make_inputs(TOKENIZER).process("r", "prompt", params)
    got: list[RequestOutput] = []

    def sink(output: RequestOutput | OctavoError) -> None:
        assert isinstance(output, RequestOutput), output
        got.append(output)

    outputs.add(prepared, kind=kind, sink=sink)
    core.add(prepared.core_requests)
    while core.has_requests:
        core.abort(outputs.process(core.step()))
    assert outputs.num_requests == outputs.num_samples == 0
    return got


def final(script: str | list[int], **params: object) -> RequestOutput:
    params.setdefault("max_tokens", 100)
    (output,) = run(script, SamplingParams(temperature=0, **params))  # type: ignore[arg-type]
    assert output.finished
    return output


def test_eos_ends_without_text() -> None:
    sample = final("hello").outputs[0]
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("hello", "stop", None)
    assert sample.token_ids == [*b"hello", EOS]


def test_length_ends() -> None:
    sample = final("hello", max_tokens=3).outputs[0]
    assert (sample.text, sample.finish_reason) == ("hel", "length")


def test_stop_string_over_tokens_ends_at_the_stop() -> None:
    sample = final("one two three", stop=["wo t"], logprobs=0).outputs[0]
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("one t", "stop", "wo t")
    assert sample.token_ids == list(b"one two t")
    assert sample.logprobs is not None and len(sample.logprobs) == len(sample.token_ids)
    assert sample.cumulative_logprob == -sum(range(9))


def test_stop_string_kept_when_asked() -> None:
    sample = final("one two three", stop=["wo t"], include_stop_str_in_output=True).outputs[0]
    assert sample.text == "one two t"


def test_held_back_text_comes_out_at_the_end() -> None:
    sample = final("ab", stop=["abc"]).outputs[0]
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("ab", "stop", None)


def test_min_tokens_holds_a_stop_string_back() -> None:
    sample = final("a.b.c.", stop=["."], min_tokens=3).outputs[0]
    assert sample.text == "a.b" and sample.token_ids == list(b"a.b.")


def test_stop_token_text_only_when_asked() -> None:
    stop = ord("c")
    sample = final("abcd", stop_token_ids=[stop]).outputs[0]
    assert (sample.text, sample.stop_reason, sample.token_ids[-1]) == ("ab", stop, stop)
    shown = final("abcd", stop_token_ids=[stop], include_stop_str_in_output=True).outputs[0]
    assert shown.text == "abc"


def test_ignore_eos_goes_on() -> None:
    sample = final("ab", ignore_eos=True, max_tokens=4).outputs[0]
    assert (sample.text, sample.token_ids) == ("ab", [*b"ab", EOS, EOS])
    shown = final("ab", ignore_eos=True, max_tokens=3, skip_special_tokens=False).outputs[0]
    assert shown.text == "ab<|eos|>"


def test_a_merged_delta_says_which_limit_ended_it() -> None:
    whole, *newer = run("abcdef", SamplingParams(max_tokens=3), kind="delta")
    assert whole.outputs[0].length_limit is None
    for delta in newer:
        whole.merge_delta(delta)
    assert (whole.outputs[0].text, whole.outputs[0].length_limit) == ("abc", "max_tokens")


def test_detokenize_off_gives_ids_only() -> None:
    sample = final("ab", detokenize=False).outputs[0]
    assert (sample.text, sample.token_ids) == ("", [*b"ab", EOS])


def test_logprobs_have_the_drawn_token_first() -> None:
    sample = final("ab", logprobs=2).outputs[0]
    assert sample.logprobs is not None
    first = sample.logprobs[0]
    assert list(first) == [ord("a"), 0]
    assert first[ord("a")] == (0.0, 1, "a")
    assert first[0].logprob == -99.0


def test_n_samples_share_the_prompt() -> None:
    output = final("hi", n=3)
    assert [s.index for s in output.outputs] == [0, 1, 2]
    assert [s.text for s in output.outputs] == ["hi"] * 3
    assert len({s.seed for s in output.outputs}) == 1


@pytest.mark.parametrize("stop", [None, ["ö z"], ["never"], ["z", "wö"]])
def test_deltas_joined_are_the_whole(stop: list[str] | None) -> None:
    script = "eins zwö zwanzig ☃ drei"
    params = SamplingParams(temperature=0, max_tokens=100, stop=stop, logprobs=1)
    whole = run(script, params)[0].outputs[0]
    deltas = [o.outputs[0] for o in run(script, params, kind="delta") if o.outputs]
    assert "".join(d.text for d in deltas) == whole.text
    assert [t for d in deltas for t in d.token_ids] == whole.token_ids
    assert [p for d in deltas for p in d.logprobs or []] == whole.logprobs
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == whole.finish_reason
    assert all("\ufffd" not in d.text for d in deltas)


def test_merged_deltas_are_the_whole() -> None:
    params = SamplingParams(temperature=0, max_tokens=100, n=2, logprobs=0)
    whole = run("some words", params)[0]
    rng = random.Random(1)
    pending: RequestOutput | None = None
    for delta in run("some words", params, kind="delta"):
        if pending is None:
            pending = delta
        else:
            pending.merge_delta(delta)
        if rng.random() < 0.3 and not pending.finished:
            assert all(o.text == whole.outputs[o.index].text[: len(o.text)]
                       for o in pending.outputs)
    assert pending is not None and pending.finished
    for mine, theirs in zip(pending.outputs, whole.outputs):
        assert (mine.text, mine.token_ids, mine.logprobs, mine.cumulative_logprob) == (
            theirs.text, theirs.token_ids, theirs.logprobs, theirs.cumulative_logprob)


def test_cumulative_outputs_grow() -> None:
    params = SamplingParams(temperature=0, max_tokens=100)
    texts = [o.outputs[0].text for o in run("word", params, kind="cumulative")]
    assert texts == ["w", "wo", "wor", "word", "word"]


def _start(kind: OutputKind, script: str, **params: object) -> tuple[
        OutputProcessor, EngineCore, list[RequestOutput]]:
    core = core_of(config_of(), ScriptedExecutor(script))
    outputs = OutputProcessor(TOKENIZER, FrontEndMetrics())
    prepared = make_inputs(TOKENIZER).process(
        "r", "prompt", SamplingParams(temperature=0, max_tokens=100, **params))  # type: ignore[arg-type]
    got: list[RequestOutput] = []
    outputs.add(prepared, kind=kind, sink=got.append)  # type: ignore[arg-type]
    core.add(prepared.core_requests)
    return outputs, core, got


def test_an_aborted_request_keeps_the_text_that_was_held_back() -> None:
    outputs, core, got = _start("delta", "one two", stop=["two three"])
    for _ in range(7):
        core.abort(outputs.process(core.step()))
    assert "".join(o.outputs[0].text for o in got) == "one "
    core.abort(outputs.abort(["r"]))
    assert "".join(o.outputs[0].text for o in got) == "one two"
    assert got[-1].finished and got[-1].outputs[0].finish_reason == "abort"


def test_what_was_told_in_deltas_is_forgotten() -> None:
    outputs, core, got = _start("delta", "some text", logprobs=1)
    while core.has_requests:
        (sample,) = outputs._samples.values()
        core.abort(outputs.process(core.step()))
        assert not (sample.text or sample.token_ids or sample.logprobs)
    parts = [o.outputs[0] for o in got]
    assert "".join(p.text for p in parts) == "some text"
    assert sum(len(p.token_ids) for p in parts) == 10 == sum(len(p.logprobs or ()) for p in parts)


def test_earlier_cumulative_outputs_do_not_grow() -> None:
    _, _, got = kept = _start("cumulative", "abc", logprobs=0)
    while kept[1].has_requests:
        kept[1].abort(kept[0].process(kept[1].step()))
    assert [o.outputs[0].text for o in got] == ["a", "ab", "abc", "abc"]
    assert [len(o.outputs[0].token_ids) for o in got] == [1, 2, 3, 4]
    assert [len(o.outputs[0].logprobs or ()) for o in got] == [1, 2, 3, 4]
