"""A request with tools answers alone as it does in a crowd, bit for bit, on the real model."""

from pathlib import Path

from octavo import LLM, SamplingParams
from octavo.engine.outputs import RequestOutput
from octavo.tools.definitions import ToolChoice, function_tool
from octavo.tools.formats import HERMES, LLAMA3_JSON, PYTHONIC, QWEN3_CODER, REASONING_FORMATS
from octavo.tools.grammar import output_grammar

TOOLS = [
    function_tool({"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"]}}, "tools[0]"),
    function_tool({"name": "clock_now"}, "tools[1]"),
]


def params(index: int) -> SamplingParams:
    """Auto, forced, parallel, with reasoning and without grammar in turn."""
    grammar = None
    if index % 5 != 4:
        choice = ToolChoice("auto" if index % 5 == 0 else "required", parallel=index % 5 == 1)
        grammar = output_grammar(
            form={3: LLAMA3_JSON, 6: PYTHONIC, 8: QWEN3_CODER}.get(index, HERMES),
            tools=TOOLS, choice=choice,
            reasoning=REASONING_FORMATS["think"] if index % 5 == 2 else None, prompt="",
            wanted=None, control_token={}.get)
    return SamplingParams(
        n=2 if index % 3 == 0 else 1, seed=index, temperature=1.2, max_tokens=24, logprobs=2,
        logit_bias={44: 9.0} if index % 5 == 0 else None, structured_outputs=grammar)


def snapshot(output: RequestOutput) -> list[tuple[object, ...]]:
    return [(s.text, s.token_ids, s.finish_reason,
             [[(t, v.logprob) for t, v in entry.items()] for entry in s.logprobs or []])
            for s in output.outputs]


def test_alone_and_in_a_crowd(model_path: Path) -> None:
    prompts = [f"Question {i}: the weather in {'Oslo ' * (i + 1)}?" for i in range(10)]
    asked = [params(i) for i in range(10)]
    alone = LLM(str(model_path), enable_prefix_caching=False, num_blocks=256)
    expected = [snapshot(alone.generate([p], [a], use_tqdm=False)[0])
                for p, a in zip(prompts, asked)]
    for index, begin in ((1, '<tool_call>\n{"name": "'), (3, '{"name": "'), (6, "["),
                         (8, "<tool_call>\n<function=")):
        assert str(expected[index][0][0]).startswith(begin)
    crowd = LLM(str(model_path), num_blocks=256, max_num_batched_tokens=64)
    for _ in range(2):  # the second time from the prefix cache
        assert [snapshot(o) for o in crowd.generate(prompts, asked, use_tqdm=False)] == expected
    stats = crowd.stats()
    assert stats.num_chunked_prefills > 0
