"""Claim `radix`: a radix tree of KV blocks against no prefix cache and against one of whole entries
(Zheng et al., SGLang: RadixAttention).

Chats with several turns, few-shot questions, and questions under shared system prompts, each by a
few closed-loop users. Three arms, in turns; all answer the same.
"""

import dataclasses
import random
import statistics
from collections import deque

from octavo.bench.plot import Bars, Curve, Diagram, Panel
from octavo.bench.stats import percentile
from octavo.core.messages import EngineCoreRequest
from octavo.core.sampling_params import SamplingParams
from octavo.engine.chat import chat_prompt
from octavo.engine.core import EngineCore
from octavo.engine.factory import FrontEndParts, load_front_end
from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.arms import take_turns
from octavo.reproduce.claim import Claim, Options, Progress, open_engines
from octavo.reproduce.conversations import (
    Chat,
    few_shot,
    multi_turn,
    multi_turn_from,
    read_questions,
    shared_system,
    words,
)
from octavo.reproduce.engine_arm import EngineArm, Record, same_outputs
from octavo.reproduce.exact_match import ExactMatchKVCacheManager
from octavo.reproduce.finding import Cell, Figure, Finding, Table

_ARMS = ("cache off", "exact match", "radix tree")
_BLOCK = 16
# Mean pause of a user before a turn. Without one, users who get their answers in the same step send
# their next turns in the same step, for ever, and wait for each other's prompts. People think
# longer; this keeps the engine busy.
_THINK_S = 1.0
_MULTI_TURN = "multi-turn"


@dataclasses.dataclass(slots=True, frozen=True)
class Sizes:
    """How much is run. Words make 1.2 tokens or so."""

    num_users: int
    num_chats: int
    num_turns: int
    system_words: int  # of chats
    turn_words: int
    chat_tokens: int
    num_tasks: int
    num_questions: int  # a task, and a long system prompt
    num_examples: int
    example_words: int
    num_prompts: int
    prompt_words: int  # of long system prompts
    answer_tokens: int
    num_slots: int


# Eight chats of six turns end at about 1,000 tokens each; few-shot prompts have about 700, system
# prompts 1,000. The cache holds all of it: what eviction costs is another question.
FULL = Sizes(num_users=4, num_chats=8, num_turns=6, system_words=100, turn_words=40, chat_tokens=96,
             num_tasks=4, num_questions=8, num_examples=8, example_words=40, num_prompts=4,
             prompt_words=800, answer_tokens=32, num_slots=24576)
QUICK = Sizes(num_users=2, num_chats=2, num_turns=3, system_words=12, turn_words=4, chat_tokens=8,
              num_tasks=2, num_questions=3, num_examples=2, example_words=6, num_prompts=2,
              prompt_words=24, answer_tokens=4, num_slots=4096)
# longer questions of a data file are left out: prompts of many thousand tokens would be all that is
# measured
_MAX_CHARS = 800


@dataclasses.dataclass(slots=True, frozen=True)
class Workload:
    """Chats, in the order in which users take them up."""

    name: str
    chats: list[Chat]


class ChatRun:
    """Users who chat with one arm: each thinks, sends its next turn, waits for the answer, and
    takes up the next chat when one is over."""

    def __init__(self, arm: EngineArm, parts: FrontEndParts, workload: Workload,
                 num_users: int) -> None:
        self.arm = arm
        self._parts = parts
        self._chats = workload.chats
        self._waiting = deque(range(len(workload.chats)))
        self._messages = [list(chat.before) for chat in workload.chats]
        self._before = self._after = arm.core.stats()
        arm.on_finish = self._answered
        # the same pauses in every arm, whatever order answers come in
        rng = random.Random(0)
        self._pauses_s = [[rng.expovariate(1 / _THINK_S) for _ in chat.turns]
                          for chat in workload.chats]
        for _ in range(min(num_users, len(self._waiting))):
            self._ask(self._waiting.popleft(), 0)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens found in the cache, 0 to 1."""
        total = sum(len(r.request.prompt_token_ids) for r in self.arm.records.values())
        return self.num_hits / total

    @property
    def num_hits(self) -> int:
        """Prompt tokens found in the cache."""
        return self._after.prefix_cache_hits - self._before.prefix_cache_hits

    @property
    def num_computed(self) -> int:
        """Prompt tokens computed."""
        return self._after.num_prompt_tokens - self._before.num_prompt_tokens

    def end(self) -> None:
        """Reads the counters; what the core does later does not count."""
        self._after = self.arm.core.stats()

    def ttfts(self, turn: int | None = None) -> list[float]:
        """Seconds to the first token; of one turn, or of all."""
        return [record.ttft_s for name, record in self.arm.records.items()
                if turn is None or _turn_of(name)[1] == turn]

    def _ask(self, chat: int, turn: int) -> None:
        self._messages[chat].append({"role": "user", "content": self._chats[chat].turns[turn]})
        ids = chat_prompt(
            self._parts.tokenizer, self._parts.chat_template, self._messages[chat],
            add_generation_prompt=True, continue_final_message=False, tools=None,
            chat_template_kwargs=None)["prompt_token_ids"]
        most = self._chats[chat].max_tokens
        self.arm.add_later(EngineCoreRequest(
            request_id=f"{chat}-{turn}", prompt_token_ids=ids,
            params=SamplingParams(temperature=0.0, max_tokens=most),
            eos_token_ids=list(self._parts.eos_token_ids), seed=0, max_tokens=most,
        ), self._pauses_s[chat][turn])

    def _answered(self, record: Record) -> None:
        chat, turn = _turn_of(record.request.request_id)
        answer = self._parts.tokenizer.decode(record.token_ids)
        self._messages[chat].append({"role": "assistant", "content": answer})
        if turn + 1 < len(self._chats[chat].turns):
            self._ask(chat, turn + 1)
        elif self._waiting:
            self._ask(self._waiting.popleft(), 0)


def _turn_of(request_id: str) -> tuple[int, int]:
    chat, _, turn = request_id.partition("-")
    return int(chat), int(turn)


def run(options: Options, progress: Progress) -> Finding:
    """Measures the claim. Raises OctavoError."""
    return measure(options, QUICK if options.quick else FULL, progress)


def measure(options: Options, sizes: Sizes, progress: Progress) -> Finding:
    """run() with sizes of the caller's."""
    workloads, source = _workloads(options, sizes)
    progress.stage("loading", 0.0)
    off = dataclasses.replace(options.engine(), enable_prefix_caching=False, block_size=_BLOCK,
                              num_blocks=sizes.num_slots // _BLOCK)
    cached = dataclasses.replace(off, enable_prefix_caching=True)
    found: dict[str, list[ChatRun]] = {}
    with open_engines(off, cached, cached, kv_cache_managers=[
        KVCacheManager, ExactMatchKVCacheManager, KVCacheManager,
    ]) as engines:
        parts = load_front_end(engines[0].config)
        cores = {name: engine.core for name, engine in zip(_ARMS, engines, strict=True)}
        for i, workload in enumerate(workloads):
            progress.stage(f"{workload.name}, three arms in turns", i / len(workloads))
            found[workload.name] = _measure(cores, parts, workload, sizes.num_users, progress)
        facts = engines[0].facts() | _facts(found, sizes, source)
    return _finding(found, sizes, facts)


def _workloads(options: Options, sizes: Sizes) -> tuple[list[Workload], str]:
    rng = random.Random(options.seed)
    num_questions = sizes.num_prompts * sizes.num_questions
    shots = few_shot(rng, num_tasks=sizes.num_tasks, num_questions=sizes.num_questions,
                     num_examples=sizes.num_examples, example_words=sizes.example_words,
                     max_tokens=sizes.answer_tokens)
    if options.data is None:
        source = "synthetic text"
        chats = multi_turn(rng, num_chats=sizes.num_chats, num_turns=sizes.num_turns,
                           system_words=sizes.system_words, turn_words=sizes.turn_words,
                           max_tokens=sizes.chat_tokens)
        asked = [words(rng, sizes.turn_words) for _ in range(num_questions)]
    else:
        source = (f"{options.data.name} (questions of at most {_MAX_CHARS} characters), under "
                  "synthetic system prompts; few-shot synthetic")
        questions = read_questions(options.data)
        chats = multi_turn_from(questions, rng, num_chats=sizes.num_chats,
                                num_turns=sizes.num_turns, system_words=sizes.system_words,
                                max_tokens=sizes.chat_tokens, max_chars=_MAX_CHARS)
        short = [q.turns[0] for q in questions if len(q.turns[0]) <= _MAX_CHARS]
        asked = rng.sample(short, min(num_questions, len(short)))
    system = shared_system(rng, asked, num_prompts=sizes.num_prompts,
                           system_words=sizes.prompt_words, max_tokens=sizes.answer_tokens)
    return [Workload(_MULTI_TURN, chats), Workload("few-shot", shots),
            Workload("shared system prompt", system)], source


def _measure(cores: dict[str, EngineCore], parts: FrontEndParts, workload: Workload,
             num_users: int, progress: Progress) -> list[ChatRun]:
    runs = []
    for name, core in cores.items():
        core.reset_prefix_cache()
        arm = EngineArm(name, core, after_step=progress.check)
        runs.append(ChatRun(arm, parts, workload, num_users))
    take_turns([run.arm for run in runs])
    for run in runs:
        run.end()
    assert same_outputs([run.arm for run in runs]), f"{workload.name}: a cache changes answers"
    off, _, radix = runs
    assert off.num_hits == 0 < radix.num_hits, f"{workload.name}: an arm did not do what it says"
    return runs


def _finding(found: dict[str, list[ChatRun]], sizes: Sizes, facts: dict[str, Cell]) -> Finding:
    figures = []
    for name, (off, exact, radix) in found.items():
        is_chat = name == _MULTI_TURN
        figures.append(Figure(f"{name}: median TTFT, cache off over radix tree",
                              _ttft(off) / _ttft(radix), "x", 4.0 if is_chat else None))
        figures.append(Figure(f"{name}: median TTFT, exact match over radix tree",
                              _ttft(exact) / _ttft(radix), "x"))
        figures.append(Figure(f"{name}: throughput, radix tree over cache off",
                              radix.arm.rate / off.arm.rate, "x"))
        figures.append(Figure(f"{name}: hit rate, radix tree", 100 * radix.hit_rate, "%"))
    return Finding(
        name=CLAIM.name, title=CLAIM.title,
        claimed="up to 6.4 times the throughput and 3.7 times lower latency, with 50 to 99 % of "
                "the prompt tokens found in the cache; in a chat service 1.7 times lower latency "
                "of the first token on average at a hit rate of 74 %",
        source="Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs, "
               "NeurIPS 2024, arXiv:2312.07104, sections 6.2 and 6.3",
        figures=figures, tables=[_table(name, runs) for name, runs in found.items()],
        diagrams=_diagrams(found, sizes), explanation=_explanation(found),
        facts=facts, identical_outputs=True,
        raw={"ttft_s": {name: {run.arm.name: {key: record.ttft_s
                                              for key, record in run.arm.records.items()}
                               for run in runs} for name, runs in found.items()}},
    )


def _ttft(run: ChatRun) -> float:
    return statistics.median(run.ttfts())


def _table(name: str, runs: list[ChatRun]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs:
        arm, ttfts = run.arm, run.ttfts()
        rows.append([
            arm.name, 100 * run.hit_rate, run.num_computed, 1e3 * statistics.median(ttfts),
            1e3 * statistics.fmean(ttfts), 1e3 * percentile(ttfts, 99),
            len(arm.records) / arm.busy_s, arm.rate])
    requests = runs[0].arm.records.values()
    mean = statistics.fmean(len(r.request.prompt_token_ids) for r in requests)
    return Table(f"{name}: {len(requests)} requests, prompts of {mean:.0f} tokens in the mean",
                 ["arm", "hits, %", "computed", "TTFT, ms", "mean", "p99", "requests/s", "tok/s"],
                 rows)


def _diagrams(found: dict[str, list[ChatRun]], sizes: Sizes) -> list[Diagram]:
    chats = found[_MULTI_TURN]
    by_turn = [Curve(run.arm.name, [
        (float(turn + 1), 1e3 * statistics.median(run.ttfts(turn)))
        for turn in range(sizes.num_turns)]) for run in chats]
    workloads = list(found)
    return [
        Panel("Multi-turn: median time to first token", "turn", by_turn, "ms"),
        Bars("Median time to first token", "ms", workloads, [
            (name, [1e3 * _ttft(found[w][i]) for w in workloads])
            for i, name in enumerate(_ARMS)]),
        Bars("Prompt tokens found in the cache", "%", workloads, [
            (name, [100 * found[w][i].hit_rate for w in workloads])
            for i, name in enumerate(_ARMS)]),
        Bars("Throughput", "tok/s", workloads, [
            (name, [found[w][i].arm.rate
                    for w in workloads]) for i, name in enumerate(_ARMS)]),
    ]


def _explanation(found: dict[str, list[ChatRun]]) -> str:
    """From the run's own figures."""
    off, exact, radix = found[_MULTI_TURN]
    hits = "; ".join(f"{name} {100 * runs[1].hit_rate:.0f} % against "
                     f"{100 * runs[2].hit_rate:.0f} %" for name, runs in found.items())
    return (
        "The time to the first token is that of the prompt tokens left to compute, beside the "
        f"other users' tokens. Multi-turn: {off.num_computed:,} prompt tokens without a cache, "
        f"{exact.num_computed:,} with whole entries, {radix.num_computed:,} with the tree; the "
        f"median falls from {1e3 * _ttft(off):.0f} to {1e3 * _ttft(radix):.0f} ms, and further "
        "the longer a chat gets. An entry that is used whole or not at all serves the next turn of "
        f"its chat and misses what different prompts begin with (hits, {hits}). Nothing finds "
        "first uses, the tokens behind the last whole block of 16, and the end of an answer that "
        "is tokenized differently when it comes back as text. Throughput gains less than the first "
        "token, because output tokens cost the same in every arm; the paper's 6.4x are programs "
        "that generate few tokens behind long shared prompts, on GPUs with full batches."
    )


def _facts(found: dict[str, list[ChatRun]], sizes: Sizes, source: str) -> dict[str, Cell]:
    facts: dict[str, Cell] = {
        "text": source, "users": sizes.num_users, "pause before a turn, mean s": _THINK_S,
        "turns of a chat": sizes.num_turns, "KV slots": sizes.num_slots,
        "exact match": "an entry is a whole prompt, or a prompt with its answer; it is used whole "
                       "or not at all",
    }
    for name, runs in found.items():
        for run in runs:
            facts[f"tokens found, {name}, {run.arm.name}"] = run.num_hits
    return facts


def _check_data(options: Options) -> None:
    if options.data is not None:
        read_questions(options.data)


CLAIM = Claim("radix", "a radix tree of KV blocks against no and exact-match prefix caches", run,
              takes=("data",), check_input=_check_data)
