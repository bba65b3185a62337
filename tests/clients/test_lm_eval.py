"""lm-eval to the end over HTTP, and its likelihoods beside those of `LLM`, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from tests.clients.environments import ClientEnvironment
from tests.server.process import ServerProcess

pytestmark = pytest.mark.full

MODEL = "SmolLM2-135M-Instruct"
TASKS = Path(__file__).parent / "lm_eval"
LM_EVAL = ClientEnvironment("lm-eval", ("lm-eval[api]==0.4.13",))


def evaluate(server: ServerProcess, model: str, route: str, folder: Path, *options: str) -> None:
    """Runs lm-eval with these tasks; what it found goes to the folder."""
    arguments = (f"model={MODEL},base_url={server.client.base_url}{route},"
                 "num_concurrent=4,max_length=8192,tokenizer_backend=")
    arguments += "remote" if model == "local-completions" else "none"
    LM_EVAL.run(
        "lm_eval", "run", "--model", model, "--model_args", arguments, "--include_path",
        str(TASKS), "--log_samples", "--output_path", str(folder), *options,
        cwd=TASKS, environment={
            "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")})


@pytest.fixture(scope="module")
def results(real_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder lm-eval has written to, over /v1/completions."""
    folder = tmp_path_factory.mktemp("lm_eval")
    evaluate(real_server, "local-completions", "/v1/completions", folder, "--tasks",
             "octavo_facts,octavo_plurals", "--batch_size", "4")
    return folder


def read(folder: Path, start: str) -> str:
    (found,) = folder.rglob(f"{start}*")
    return found.read_text()


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(folder, f"samples_{task}_").splitlines()]


def test_figures(results: Path) -> None:
    """A model of this size knows more than chance; the figures are lm-eval's."""
    found = json.loads(read(results, "results_"))["results"]
    assert found["octavo_facts"]["acc,none"] > 0.5
    assert found["octavo_plurals"]["exact_match,stripped"] > 0.5
    print({task: {k: v for k, v in f.items() if k.endswith((",none", ",stripped"))}
           for task, f in found.items()})


def test_likelihoods_are_those_of_the_library(results: Path) -> None:
    items = samples(results, "octavo_facts")
    assert len(items) == 40
    pairs = [(a["arg_0"], a["arg_1"], float(r[0][0]), r[0][1] in ("True", True))
             for item in items
             for a, r in zip(item["arguments"].values(), item["resps"], strict=True)]
    assert len(pairs) == 160
    with LLM("smollm2-135m") as llm:
        tokenizer = llm.get_tokenizer()
        contexts = [len(tokenizer.encode(context)) for context, *_ in pairs]
        prompts = [{"prompt_token_ids": list(tokenizer.encode(context + answer))}
                   for context, answer, *_ in pairs]
        outputs = llm.generate(prompts, SamplingParams(
            temperature=0, max_tokens=1, prompt_logprobs=1), use_tqdm=False)
    for (_, answer, over_http, over_http_greedy), start, output in zip(pairs, contexts, outputs):
        assert output.prompt_logprobs is not None
        ids = output.prompt_token_ids[start:]
        entries = output.prompt_logprobs[start:]
        own = [entry[token_id].logprob for entry, token_id in zip(entries, ids) if entry]
        assert own and len(own) == len(ids)
        assert sum(own) == over_http, answer
        greedy = all(entry[i].rank == 1 for entry, i in zip(entries, ids) if entry)
        assert greedy == over_http_greedy, answer


def test_generations_are_those_of_the_library(results: Path) -> None:
    items = samples(results, "octavo_plurals")
    assert len(items) == 20
    with LLM("smollm2-135m") as llm:
        params = SamplingParams(temperature=0, max_tokens=8, stop=["\n", ",", "."])
        outputs = llm.generate([item["arguments"]["gen_args_0"]["arg_0"] for item in items],
                               params, use_tqdm=False)
    assert [o.outputs[0].text for o in outputs] == [item["resps"][0][0] for item in items]


def test_over_chat(real_server: ServerProcess, tmp_path: Path) -> None:
    evaluate(real_server, "local-chat-completions", "/v1/chat/completions", tmp_path, "--tasks",
             "octavo_plurals", "--apply_chat_template")
    items = samples(tmp_path, "octavo_plurals")
    assert len(items) == 20 and all(isinstance(item["resps"][0][0], str) for item in items)
