"""`python -m benchmarks.conformance`: requests that schemathesis makes from OpenAPI documents.

The server's own document always, and OpenAI's published one with --openai-spec FILE: once with
nothing changed but the model's name and token ids, and once without what no text server with the
user's own tools can do. Prints a table of counts; exits 1 where a check failed or an answer was a
5xx. Schemathesis is installed into an environment of its own on first use. Some minutes.
"""

import argparse
import base64
import collections
import contextlib
import copy
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.server_process import ServerProcess
from octavo.testing.toy_model import tiny_llama

_TOOL = "schemathesis>=4.20,<5"
_CHECKS = "response_schema_conformance,not_a_server_error,content_type_conformance"
_NAME = "conformance-model"
# generated requests ask for all the output there is room for
_MAX_MODEL_LEN = 256
_MAX_TOKEN_ID = 255  # the tiny model's vocabulary is bytes
_TIMEOUT_S = 900.0
_SSE = "text/event-stream"
_TOOL_NAME = "^[a-zA-Z0-9_-]{1,64}$"
_OPERATIONS = ("createChatCompletion", "createCompletion", "createResponse", "listModels",
               "retrieveModel")
_TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

# What OpenAI's servers do beyond text and the user's own tools: fields ...
_HOSTED_FIELDS = ("prompt", "conversation", "context_management", "background", "moderation",
                  "previous_response_id", "audio", "modalities")
# ... and the parts of unions that stay, by the union's name.
_KEPT = {
    "ChatCompletionRequestUserMessageContentPart": ("ChatCompletionRequestMessageContentPartText",),
    "Tool": ("FunctionTool", "CustomToolParam"),
    "ToolChoiceParam": ("ToolChoiceOptions", "ToolChoiceAllowed", "ToolChoiceFunction",
                        "ToolChoiceCustom"),
    "InputContent": ("InputTextContent",),
    "FunctionAndCustomToolCallOutput": ("InputTextContent",),
    "Item": ("InputMessage", "OutputMessage", "FunctionToolCall", "FunctionCallOutputItemParam",
             "CustomToolCall", "CustomToolCallOutput", "ReasoningItem"),
    "InputItem": ("EasyInputMessage", "Item"),
}


@dataclasses.dataclass(slots=True)
class Count:
    """Requests of one operation that are valid by the document, and invalid ones."""

    valid: int = 0
    accepted: int = 0
    invalid: int = 0
    server_errors: int = 0
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass(slots=True, frozen=True)
class Run:
    """One document's requests: by operation, and what the checks found."""

    name: str
    counts: dict[str, Count]
    num_failures: int
    failures: list[str]

    def total(self) -> Count:
        """Of all operations."""
        every = self.counts.values()
        return Count(sum(c.valid for c in every), sum(c.accepted for c in every),
                     sum(c.invalid for c in every), sum(c.server_errors for c in every))


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    made.add_argument("--model", help="what `octavo serve` takes (default: a tiny random model)")
    made.add_argument("--openai-spec", type=Path, metavar="FILE.json")
    made.add_argument("--max-examples", type=int, default=30, metavar="N",
                      help="fuzzed requests of each operation (default %(default)s)")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--venv", type=Path, metavar="DIR",
                      default=Path.home() / ".cache" / "octavo" / "schemathesis",
                      help="environment of schemathesis, made if it is not there")
    made.add_argument("--json", type=Path, metavar="FILE")
    args = made.parse_args(argv)
    program = schemathesis(args.venv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _server(args.model, folder) as server:
            runs = []
            for run in _runs(server.base_url, args, program, folder):
                _print(run)
                runs.append(run)
    if args.json is not None:
        args.json.write_text(json.dumps([_plain(run) for run in runs], indent=1))
    return int(any(run.num_failures or run.total().server_errors for run in runs))


def schemathesis(folder: Path) -> Path:
    """The program in an environment of its own; made if it is not there."""
    program = folder / "bin" / "schemathesis"
    if not program.exists():
        print(f"installing schemathesis into {folder}", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", _TOOL],
                       check=True)
    return program


@contextlib.contextmanager
def _server(model: str | None, folder: Path) -> Iterator[ServerProcess]:
    flags = ["--served-model-name", _NAME, "--max-model-len", str(_MAX_MODEL_LEN),
             "--disable-log-requests", "--engine-restarts", "0"]
    if model is None:
        model = str(tiny_llama().save(folder / "model"))
        template = folder / "template.jinja"
        template.write_text(_TEMPLATE)
        flags += ["--chat-template", str(template)]
    with ServerProcess(model, *flags) as server:
        server.wait_ready()
        yield server


def _runs(url: str, args: argparse.Namespace, program: Path, folder: Path) -> Iterator[Run]:
    common = ["--max-examples", str(args.max_examples), "--seed", str(args.seed)]
    yield _run("own document", program, folder,
               [f"{url}/openapi.json", "--url", url, "--phases", "coverage,fuzzing",
                "--exclude-operation-id", "liveEvents",  # a stream without an end
                *common])
    if args.openai_spec is None:
        return
    chosen = [word for name in _OPERATIONS for word in ("--include-operation-id", name)]
    spec = json.loads(args.openai_spec.read_text())
    fit_model(spec, _NAME)
    for name in ("OpenAI's document", "OpenAI's document, text and own tools"):
        if name.endswith("tools"):
            leave_out_hosted(spec)
        path = folder / "openai.json"
        path.write_text(json.dumps(spec))
        yield _run(name, program, folder,
                   [str(path), "--url", f"{url}/v1", "--mode", "positive", *chosen, *common])


def _plain(run: Run) -> dict[str, Any]:
    """For JSON. dataclasses.asdict makes no counter of a counter."""
    counts = {name: {"valid": c.valid, "accepted": c.accepted, "invalid": c.invalid,
                     "server_errors": c.server_errors, "refusals": dict(c.refusals.most_common())}
              for name, c in run.counts.items()}
    return {"name": run.name, "counts": counts, "failures": run.failures}


def fit_model(spec: dict[str, Any], name: str) -> None:
    """What no document of another server can say: this model's name and token ids. And where it
    contradicts its own server and descriptions: see fit_answers."""
    fit_answers(spec)
    schemas = spec["components"]["schemas"]
    model = {"type": "string", "enum": [name]}
    schemas["ModelIdsShared"] = schemas["ModelIdsResponses"] = model
    token_id = {"type": "integer", "minimum": 0, "maximum": _MAX_TOKEN_ID}
    completion = schemas["CreateCompletionRequest"]["properties"]
    completion["model"] = model
    completion["prompt"]["oneOf"][2]["items"] = token_id
    completion["prompt"]["oneOf"][3]["items"]["items"] = token_id
    chat = schemas["CreateChatCompletionRequest"]["allOf"][1]["properties"]
    for bias in (completion["logit_bias"], chat["logit_bias"]):
        bias["propertyNames"] = {"pattern": "^[0-9]{1,2}$"}
        bias["additionalProperties"] |= {"minimum": -100, "maximum": 100}
    for parameter in spec["paths"]["/models/{model}"]["get"]["parameters"]:
        parameter["schema"] = model


def fit_answers(spec: dict[str, Any]) -> None:
    """With echo, the first token of a prompt has no logprob. Completions are streamed, too, as the
    description of `stream` says, with choices that have not finished. And what the document gives
    as the schema of an event stream is that of the JSON in the events' data."""
    schemas = spec["components"]["schemas"]
    choice = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    logprobs = choice["logprobs"]["anyOf"][0]["properties"]
    for field in ("token_logprobs", "top_logprobs"):
        logprobs[field]["items"] = {"anyOf": [logprobs[field]["items"], {"type": "null"}]}
    chunk = copy.deepcopy(schemas["CreateCompletionResponse"])
    parts = chunk["properties"]["choices"]["items"]["properties"]
    parts["finish_reason"] = {"anyOf": [parts["finish_reason"], {"type": "null"}]}
    schemas["CreateCompletionChunk"] = chunk
    content = spec["paths"]["/completions"]["post"]["responses"]["200"]["content"]
    content[_SSE] = {"schema": {"$ref": "#/components/schemas/CreateCompletionChunk"}}
    for path in ("/chat/completions", "/completions", "/responses"):
        content = spec["paths"][path]["post"]["responses"]["200"]["content"]
        payload = content[_SSE]["schema"]
        content[_SSE]["schema"] = {"type": "object", "required": ["data"], "properties": {
            "data": {"type": "string", "anyOf": [
                {"const": "[DONE]"},
                {"contentMediaType": "application/json", "contentSchema": payload}]}}}


def leave_out_hosted(spec: dict[str, Any]) -> None:
    """Takes fields and parts of unions away, in place. And what then remains valid only by an
    oversight of the document: a request without any input (without stored prompts and
    conversations there is none), tools whose names are not what their descriptions say, a choice
    among no tools."""
    schemas = spec["components"]["schemas"]
    for name in ("CreateResponse", "ResponseProperties", "CreateChatCompletionRequest"):
        for part in (schemas[name], *schemas[name].get("allOf", ())):
            for field in _HOSTED_FIELDS:
                part.get("properties", {}).pop(field, None)
    for name, kept in _KEPT.items():
        for union in ("oneOf", "anyOf"):
            if union in schemas.get(name, ()):
                schemas[name][union] = [part for part in schemas[name][union]
                                        if part.get("$ref", "").rpartition("/")[2] in kept]
                schemas[name].pop("discriminator", None)
                assert schemas[name][union], name
    results = schemas["FunctionCallOutputItemParam"]["properties"]["output"]["oneOf"][1]
    results["items"] = {"$ref": "#/components/schemas/InputTextContentParam"}
    schemas["CreateResponse"]["allOf"].append({"required": ["input"]})
    for name in ("FunctionTool", "CustomToolParam"):
        schemas[name]["properties"]["name"]["pattern"] = _TOOL_NAME
    for name in ("FunctionObject", "CustomToolChatCompletions"):
        found = schemas[name]["properties"]
        found.get("custom", {"properties": found})["properties"]["name"]["pattern"] = _TOOL_NAME
    schemas["ToolChoiceAllowed"]["properties"]["tools"]["minItems"] = 1


def _run(name: str, program: Path, folder: Path, words: Sequence[str]) -> Run:
    log, report = folder / "log.ndjson", folder / "report.json"
    for path in (log, report):
        path.unlink(missing_ok=True)
    done = subprocess.run(
        [program, "run", *words, "-c", _CHECKS, "--report", "ndjson,json",
         "--report-ndjson-path", log, "--report-json-path", report, "--no-color",
         "--continue-on-failure", "--request-timeout", "60", "--generation-database", "none",
         "--suppress-health-check", "all"],
        cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if not report.exists():
        raise RuntimeError(f"schemathesis made no report: {(done.stderr or done.stdout)[-2000:]}")
    found = json.loads(report.read_text())
    failures = [f"{f.get('operation', '')}: {f.get('title', f)}" for f in found["failures"]]
    failures += [str(error)[:300] for error in found["errors"]]
    return Run(name, _counts(log), len(failures), failures)


def _counts(log: Path) -> dict[str, Count]:
    """By operation, from schemathesis' record of every exchange."""
    counts: dict[str, Count] = collections.defaultdict(Count)
    with log.open() as lines:
        for line in lines:
            recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
            for case_id, exchange in recorder.get("interactions", {}).items():
                case = recorder["cases"][case_id]["value"]
                if exchange.get("response") is None or not case.get("meta"):
                    continue
                _add(counts[f"{case['method']} {case['path']}"],
                     case["meta"]["generation"]["mode"] == "positive", exchange["response"])
    return dict(sorted(counts.items()))


def _add(count: Count, is_valid: bool, response: dict[str, Any]) -> None:
    status = response["status_code"]
    count.server_errors += status >= 500
    if not is_valid:
        count.invalid += 1
        return
    count.valid += 1
    if status < 300:
        count.accepted += 1
        return
    body = base64.b64decode((response.get("content") or {}).get("$base64", ""))
    try:
        error = json.loads(body)["error"]
        text = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError):
        text = f"status {status}"
    # without what differs from request to request
    count.refusals[re.sub(r"'[^']*'|\"[^\"]*\"|\d+|[^\x00-\x7f]+", "_", text)[:100]] += 1


def _print(run: Run) -> None:
    total = run.total()
    print(f"\n{run.name}: {total.valid + total.invalid} requests, {total.server_errors} server "
          f"errors, {run.num_failures} failed checks")
    print(f"{'operation':46} {'valid':>6} {'2xx':>6} {'share':>7} {'invalid':>8}")
    for name, count in [*run.counts.items(), ("all", total)]:
        share = f"{count.accepted / count.valid:.1%}" if count.valid else "-"
        print(f"{name:46} {count.valid:6} {count.accepted:6} {share:>7} {count.invalid:8}")
        for text, number in count.refusals.most_common(3):
            print(f"      {number:5} x {text}")
    for failure in run.failures:
        print(f"  FAILED {failure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
