"""LLM on a tiny real graph: the whole offline path."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.input_processor import Prompt
from octavo.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    ModelOutputError,
)
from octavo.testing.toy_model import tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), max_model_len=128, num_blocks=64) as llm:
        yield llm


def test_outputs_come_in_order_and_do_not_depend_on_the_batch(llm: LLM) -> None:
    prompts = ["a", "some longer prompt", "b" * 40]
    together = llm.generate(prompts, GREEDY)
    assert [o.prompt for o in together] == prompts
    for prompt, out in zip(prompts, together):
        (alone,) = llm.generate(prompt, GREEDY)
        assert alone.outputs[0].token_ids == out.outputs[0].token_ids
        assert len(out.outputs[0].token_ids) == 8
        assert out.finished and out.outputs[0].finish_reason == "length"


def test_a_reported_seed_repeats_the_request(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, n=2)
    (first,) = llm.generate("x", params)
    assert first.outputs[0].token_ids != first.outputs[1].token_ids
    seed = first.outputs[0].seed
    again = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, n=2, seed=seed)
    (second,) = llm.generate("x", again)
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]


def test_listed_tokens_report_what_all_of_them_would(llm: LLM) -> None:
    """In the given order, without ranks, to the bit; forced tokens of a grammar too."""
    listed = [97, 5, 255, 98, 1]
    for form in (None, {"choice": ["abcabc and more", "xyz"]}):
        fields = {"temperature": 1.0, "seed": 4, "max_tokens": 6, "structured_outputs": form}
        everything, asked, alone = (out.outputs[0] for out in llm.generate(["x", "x", "x"], [
            SamplingParams(logprobs=-1, **fields),
            SamplingParams(logprob_token_ids=listed, **fields), SamplingParams(**fields)]))
        assert asked.token_ids == everything.token_ids == alone.token_ids
        assert asked.cumulative_logprob == everything.cumulative_logprob
        for token_id, entry, full in zip(asked.token_ids, asked.logprobs, everything.logprobs):
            assert list(entry) == [token_id, *(i for i in listed if i != token_id)]
            assert entry[token_id] == full[token_id]
            for i in set(listed) - {token_id}:
                assert entry[i] == full[i]._replace(rank=None)
    with pytest.raises(InvalidRequestError, match="logprob_token_ids holds 100000"):
        llm.generate("x", SamplingParams(logprob_token_ids=[100000]))
    with pytest.raises(InvalidRequestError, match="logprobs is 2"):
        SamplingParams(logprob_token_ids=[1], logprobs=2)


def test_token_ids_and_text_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("hello")
    prompts: list[Prompt] = ["hello", ids, {"prompt_token_ids": ids}]
    by_text, by_ids, by_dict = llm.generate(prompts, GREEDY)
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids
    assert by_text.outputs[0].token_ids == by_dict.outputs[0].token_ids
    (single,) = llm.generate(ids, GREEDY)
    assert single.prompt_token_ids == ids


def test_chat_renders_the_template(llm: LLM) -> None:
    one, two = llm.chat([[{"role": "user", "content": "hi"}], [{"role": "user", "content": "yo"}]],
                        GREEDY)
    assert one.prompt == "user: hi\nassistant:" and two.prompt == "user: yo\nassistant:"
    (single,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert single.outputs[0].token_ids == one.outputs[0].token_ids


def test_logprobs_and_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1,
                            ignore_eos=True)
    (out,) = llm.generate("abcd", params)
    sample = out.outputs[0]
    assert sample.logprobs is not None and len(sample.logprobs) == 3
    for token, entry in zip(sample.token_ids, sample.logprobs):
        assert entry[token].rank == 1 and len(entry) == 2
    assert sample.cumulative_logprob == pytest.approx(
        sum(e[t].logprob for t, e in zip(sample.token_ids, sample.logprobs)))
    assert out.prompt_logprobs is not None and len(out.prompt_logprobs) == 4
    assert out.prompt_logprobs[0] is None
    for token, entry_or_none in zip(b"bcd", out.prompt_logprobs[1:]):
        assert entry_or_none is not None and token in entry_or_none
    # scoring the output as a prompt gives the same logprobs
    whole = out.prompt_token_ids + sample.token_ids
    (scored,) = llm.generate(whole, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    assert scored.prompt_logprobs is not None
    for token, entry, other in zip(sample.token_ids, sample.logprobs, scored.prompt_logprobs[4:]):
        assert other is not None and other[token].logprob == entry[token].logprob


def test_one_bad_prompt_stops_the_list_before_it_runs(llm: LLM) -> None:
    before = llm.stats().num_steps
    with pytest.raises(ContextLengthError):
        llm.generate(["fine", "x" * 200], GREEDY)
    with pytest.raises(InvalidRequestError, match="one for all, or one each"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidRequestError):
        llm.generate("a", SamplingParams(logit_bias={10**6: 1.0}))
    assert llm.stats().num_steps == before
    assert llm.generate([]) == []


def test_a_model_without_finite_scores_is_to_blame_itself(tmp_path: Path) -> None:
    """Its weights are sound numbers that overflow; the next request hears the same."""
    model = tiny_llama()
    for tensor in model.tensors.values():
        if tensor.ndim == 1:  # the norms
            tensor[:] = 3e38
    with LLM(str(model.save(tmp_path / "huge")), max_model_len=128, num_blocks=64) as llm:
        for params in (GREEDY, SamplingParams(min_tokens=2, max_tokens=4)):
            with pytest.raises(ModelOutputError, match="gives no numbers") as caught:
                llm.generate("x", params)
            assert caught.value.http_status == 500


def test_a_request_that_can_draw_nothing_fails_and_the_engine_goes_on(llm: LLM) -> None:
    nothing = SamplingParams(allowed_token_ids=[97], bad_words=["a"], max_tokens=4)
    with pytest.raises(InvalidRequestError, match="ban every token"):
        llm.generate(["x", "y"], [GREEDY, nothing])
    assert llm.stats().num_running == llm.stats().num_waiting == 0
    assert llm.stats().num_free_blocks == llm.stats().num_blocks
    assert len(llm.generate("x", GREEDY)[0].outputs[0].token_ids) == 8


def test_more_prompts_than_the_queue_holds(tiny_folder: Path) -> None:
    with LLM(str(tiny_folder), max_model_len=32, num_blocks=8, max_num_seqs=2) as llm:
        object.__setattr__(llm.config.scheduler, "max_num_waiting", 3)
        outputs = llm.generate(["p"] * 20, SamplingParams(temperature=0, max_tokens=2))
    assert len(outputs) == 20


def test_defaults_come_from_generation_config(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.9, 16)


def test_metrics(llm: LLM) -> None:
    before = llm.get_metrics()["octavo:generation_tokens_total"]
    llm.generate("abc", GREEDY)
    metrics = llm.get_metrics()
    assert metrics["octavo:generation_tokens_total"] == before + 8
    assert metrics["octavo:num_requests_running"] == 0
    assert metrics["octavo:request_success_total{finished_reason=length}"] > 0


def test_interrupting_leaves_nothing_running(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    client = llm._client
    assert client is not None
    step, calls = client.step, []

    def interrupted(*args):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(client, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY)
    monkeypatch.undo()
    assert not client.has_requests
    assert llm.stats().num_free_blocks == llm.stats().num_blocks


def test_shutdown_is_final_and_repeatable(tiny_folder: Path) -> None:
    llm = LLM(str(tiny_folder), max_model_len=32, num_blocks=8)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDeadError):
        llm.generate("a", GREEDY)


def test_bad_arguments_and_models(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LLM(str(tiny_folder), max_model_len=10**6)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError):
        LLM(str(broken))


def test_ctrl_c_in_a_step_waits_for_its_end(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    client = llm._client
    assert client is not None
    executor = client._core._executor
    collect, calls = executor.collect, []

    def pressed(handle):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return collect(handle)

    monkeypatch.setattr(executor, "collect", pressed)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY)
    monkeypatch.undo()
    assert len(calls) == 2 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm.stats().num_free_blocks == llm.stats().num_blocks
    assert len(llm.generate("x", GREEDY)[0].outputs[0].token_ids) == 8


def test_more_masks_biases_and_penalties_than_any_fixed_table(tiny_folder: Path) -> None:
    """Every one of many running requests brings the most it may: nothing overflows or mixes."""
    params = [
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, repetition_penalty=1.3,
                       frequency_penalty=0.5, logit_bias={i: 0.01 * i for i in range(260)},
                       allowed_token_ids=[97 + i % 5, 110 + i % 3], logprobs=-1)
        for i in range(70)
    ]
    prompts = [bytes([65 + i % 50] * 30 + list(range(100))).decode() for i in range(70)]
    with LLM(str(tiny_folder), max_model_len=160, max_num_seqs=70, num_blocks=800) as llm:
        together = llm.generate(prompts, params)
        assert llm.stats().num_preemptions == 0
        for i in (0, 33, 69):
            alone = llm.generate(prompts[i], params[i])[0].outputs[0]
            assert together[i].outputs[0].token_ids == alone.token_ids
            assert set(alone.token_ids) <= set(params[i].allowed_token_ids or ())
            assert alone.logprobs is not None and len(alone.logprobs[0]) == 260


def test_stop_strings_with_async_scheduling_show_and_count_the_same(tiny_folder: Path) -> None:
    found = []
    for overlap in (False, True):
        with LLM(str(tiny_folder), num_blocks=64, async_scheduling=overlap) as engine:
            free = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True)
            text = engine.generate("some text", free)[0].outputs[0].text
            stop = next(c for c in text[8:] if c.isprintable())
            params = SamplingParams(temperature=1.0, seed=3, max_tokens=60, ignore_eos=True,
                                    stop=[stop])
            outputs = engine.generate(["some text"] * 3, [params, free, params], use_tqdm=False)
            found.append([(o.outputs[0].text, o.outputs[0].token_ids, o.outputs[0].finish_reason,
                           o.outputs[0].stop_reason) for o in outputs])
            metrics, stats = engine.get_metrics(), engine.stats()
            found[-1].append(metrics["octavo:generation_tokens_total"])
            ahead = metrics["octavo:steps_scheduled_ahead_total"]
            assert (ahead >= 20) == overlap
            assert stats.num_free_blocks == stats.num_blocks and stats.num_running == 0
    assert found[0] == found[1]
    assert found[0][0][2:] == ("stop", found[0][0][3])
