"""LLM at its bounds: many samples, the end of the context, of the KV cache, and odd requests."""

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.outputs import RequestOutput


def bits(output: RequestOutput) -> object:
    return ([(o.token_ids, o.logprobs, o.finish_reason) for o in output.outputs],
            output.prompt_logprobs)


def test_prompt_logprobs_survive_chunks_preemptions_and_the_prefix_cache(
        tiny_folder: Path) -> None:
    params = [SamplingParams(temperature=1.0, seed=2**63 + i, max_tokens=40, ignore_eos=True,
                             logprobs=2, prompt_logprobs=3, n=1 + i % 2, repetition_penalty=1.2,
                             min_tokens=3, bad_words=["ab", "q"])
              for i in range(8)]
    prompts = ["shared head of every prompt " * 2 + chr(97 + i) * 9 * i for i in range(8)]
    with LLM(str(tiny_folder), max_model_len=256, num_blocks=64, enable_prefix_caching=False,
             max_num_batched_tokens=256) as llm:
        alone = [llm.generate(p, s)[0] for p, s in zip(prompts, params)]
    with LLM(str(tiny_folder), max_model_len=256, num_blocks=20,
             max_num_batched_tokens=16) as llm:
        llm.generate(prompts[0], SamplingParams(max_tokens=1))  # fills the cache
        together = llm.generate(prompts, params)
        stats = llm.stats()
        assert stats.num_preemptions > 0 and stats.num_chunked_prefills > 0
    for one, other in zip(alone, together):
        assert bits(one) == bits(other)
        assert one.prompt_logprobs is not None
        assert len(one.prompt_logprobs) == len(one.prompt_token_ids)


def test_as_many_samples_as_may_be(tiny_folder: Path) -> None:
    params = SamplingParams(n=128, temperature=1.0, seed=1, max_tokens=3, ignore_eos=True,
                            prompt_logprobs=0)
    with LLM(str(tiny_folder), max_model_len=64, num_blocks=40) as llm:
        (out,) = llm.generate("a prompt of twenty..", params)
        metrics = llm.get_metrics()
        assert llm.stats().num_free_blocks == 40
    assert [o.index for o in out.outputs] == list(range(128))
    assert all(len(o.token_ids) == 3 and o.finish_reason == "length" for o in out.outputs)
    assert len({tuple(o.token_ids) for o in out.outputs}) > 64
    assert out.prompt_logprobs is not None and len(out.prompt_logprobs) == 20
    assert metrics["octavo:generation_tokens_total"] == 384
    assert metrics["octavo:prompt_tokens_total"] == 20
    assert metrics["octavo:request_success_total{finished_reason=length}"] == 1
    assert metrics["octavo:iteration_tokens_total_count"] == metrics["octavo:engine_steps_total"]


def test_the_context_and_the_cache_end_a_request(tiny_folder: Path) -> None:
    rest = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with LLM(str(tiny_folder), max_model_len=40, num_blocks=8) as llm:
        (out,) = llm.generate("x" * 30, rest)
        assert (len(out.outputs[0].token_ids), out.outputs[0].finish_reason) == (10, "length")
        (out,) = llm.generate("x" * 39, rest)
        assert (len(out.outputs[0].token_ids), out.outputs[0].finish_reason) == (1, "length")
        assert out.outputs[0].length_limit == "context"
        few = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
        fits, cut = (o.outputs[0] for o in llm.generate(["x" * 30, "x" * 35], few))
        assert (len(fits.token_ids), fits.length_limit) == (10, "max_tokens")
        assert (len(cut.token_ids), cut.length_limit) == (5, "context")
        stopped = llm.generate("x", SamplingParams(temperature=0, stop_token_ids=list(range(256))))
        assert (stopped[0].outputs[0].finish_reason, stopped[0].outputs[0].length_limit) == (
            "stop", None)
    with LLM(str(tiny_folder), max_model_len=200, num_blocks=3) as llm:
        (out,) = llm.generate("x" * 30, rest)
        # the last token needs no slot: it is drawn and never computed
        assert (len(out.outputs[0].token_ids), out.outputs[0].finish_reason) == (19, "length")
        assert out.outputs[0].length_limit == "kv_cache"
        assert llm.stats().num_free_blocks == 3


def test_samples_stop_at_their_own_stop_strings(tiny_folder: Path) -> None:
    params = SamplingParams(n=6, temperature=1.5, seed=3, max_tokens=60, ignore_eos=True,
                            logprobs=0)
    with LLM(str(tiny_folder), max_model_len=128, num_blocks=64) as llm:
        (free,) = llm.generate("go", params)
        stop = next(c for c in free.outputs[0].text[5:] if c.isascii() and c.isprintable())
        (cut,) = llm.generate("go", SamplingParams(
            n=6, temperature=1.5, seed=3, max_tokens=60, ignore_eos=True, logprobs=0, stop=[stop]))
        tokens = llm.get_metrics()["octavo:generation_tokens_total"]
        assert llm.stats().num_free_blocks == 64
    for whole, part in zip(free.outputs, cut.outputs):
        assert part.text == whole.text.split(stop)[0]
        assert part.token_ids == whole.token_ids[: len(part.token_ids)]
        assert part.logprobs == (whole.logprobs or [])[: len(part.token_ids)]
        assert part.finish_reason == ("stop" if stop in whole.text else "length")
    shown = sum(len(o.token_ids) for out in (free, cut) for o in out.outputs)
    assert tokens == shown


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_seed_repeats(tiny_folder: Path, seed: int) -> None:
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=8, ignore_eos=True)
    with LLM(str(tiny_folder), max_model_len=64, num_blocks=8) as llm:
        first, second = llm.generate(["a", "a"], params)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert first.outputs[0].seed == seed
