"""A real AsyncLLM whose model is a script: for tests of what is built on it, in milliseconds.

Scheduler, KV bookkeeping, output processing and the core's protocol are the real ones; only the
executor is replaced. Tokens are bytes (testing/byte_tokenizer.py).
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable

from octavo.config import (
    CacheSection,
    EngineConfig,
    ModelSection,
    SchedulerSection,
    SchedulingPolicy,
    ServerSection,
)
from octavo.core.messages import EngineReady, TokenLogprobs
from octavo.core.step import ModelRunnerOutput, NewRequestData, SchedulerOutput
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.core import EngineCore
from octavo.engine.core_client import ThreadHost
from octavo.engine.factory import FrontEndParts
from octavo.errors import OctavoError
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.scheduler import Scheduler
from octavo.testing.byte_tokenizer import (
    BOS_ID,
    CONTROL_TOKENS,
    EOS_ID,
    IM_END_ID,
    VOCAB_SIZE,
    byte_tokenizer,
)
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.weights.model_config import ModelConfig, RopeConfig

# the prompt says what is answered: SAY:text| , then EOS; otherwise letters without end
_SAY = b"SAY:"
_FAULT = b"FAULT-AT-5"
_FAULT_AT = 5
_LETTERS = b"abcdefghijklmnopqrstuvwxyz "
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ScriptedExecutor:
    """An executor that draws what the prompt tells it to.

    step_s: how long a step takes. run: while it is clear, steps wait.
    """

    def __init__(self, *, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.run = threading.Event()
        self.run.set()
        self._requests: dict[str, _Scripted] = {}
        self._result: ModelRunnerOutput | None = None

    def submit(self, so: SchedulerOutput) -> int:
        """See the seam."""
        self.run.wait()
        if self.step_s:
            time.sleep(self.step_s)
        for request_id in so.finished_request_ids:
            del self._requests[request_id]
        for new in so.new_requests:
            self._requests[new.request_id] = _Scripted(new)
        for cached in so.cached_requests:
            self._requests[cached.request_id].num_computed = cached.num_computed_tokens
        output = ModelRunnerOutput(step_id=so.step_id, sampled_token_ids={}, num_native_calls=1)
        for request_id, num_tokens in so.num_scheduled_tokens.items():
            self._requests[request_id].advance(request_id, num_tokens, output)
        self._result = output
        return so.step_id

    def collect(self, handle: object) -> ModelRunnerOutput:
        """See the seam."""
        assert self._result is not None and self._result.step_id == handle
        return self._result

    def describe(self) -> dict[str, str]:
        """See the seam."""
        return {"backend": "scripted"}

    def shutdown(self) -> None:
        """See the seam."""
        self._requests.clear()


class _Scripted:
    """One request of the executor."""

    def __init__(self, new: NewRequestData) -> None:
        self.new = new
        self.token_ids = list(new.token_ids)
        self.num_computed = new.num_computed_tokens
        prompt = bytes(i for i in new.token_ids[: new.num_prompt_tokens] if i < 256)
        self._faulty = _FAULT in prompt
        self._script: list[int] | None = None
        if _SAY in prompt:
            said = prompt.rpartition(_SAY)[2].partition(b"|")[0]
            self._script = [*said, EOS_ID]

    def advance(self, request_id: str, num_tokens: int, output: ModelRunnerOutput) -> None:
        """Computes some tokens, and draws one behind the last."""
        new, start = self.new, self.num_computed
        self.num_computed += num_tokens
        if new.params.prompt_logprobs is not None:
            last = min(self.num_computed + 1, new.num_prompt_tokens)
            scored = [_logprobs(i, new.params.prompt_logprobs)
                      for i in self.token_ids[start + 1: last]]
            if scored:
                output.prompt_logprobs[request_id] = scored
        if self.num_computed < len(self.token_ids):
            return
        token_id = self._draw(len(self.token_ids) - new.num_prompt_tokens)
        self.token_ids.append(token_id)
        output.sampled_token_ids[request_id] = [token_id]
        if new.params.logprobs is not None:
            listed = new.params.logprob_token_ids
            entry = _logprobs(token_id, len(listed) if listed else new.params.logprobs)
            entry.top_ids = listed or entry.top_ids
            output.logprobs[request_id] = [entry]

    def _draw(self, position: int) -> int:
        if self._faulty and position == _FAULT_AT:
            raise RuntimeError("the fault a test asked for")
        if self._script is not None:
            return self._script[min(position, len(self._script) - 1)]
        shift = self.new.num_prompt_tokens
        if not self.new.params.greedy:
            shift += self.new.seed + 7 * self.new.sample_index
        return _LETTERS[(shift + position) % len(_LETTERS)]


def _logprobs(token_id: int, count: int) -> TokenLogprobs:
    """The token is the most likely one; the last of the others is impossible."""
    top = [(token_id + k) % VOCAB_SIZE for k in range(count)]
    values = [-0.5 - k for k in range(count)]
    if count > 1:
        values[-1] = float("-inf")
    return TokenLogprobs(token_id, -0.5, 1, top, values)


@dataclasses.dataclass(slots=True, frozen=True)
class FakeEngine:
    """An AsyncLLM, its executor, the switch that lets it finish loading, and its cores: one, and
    another for each restart."""

    llm: AsyncLLM
    executor: ScriptedExecutor
    may_load: threading.Event
    cores: list[EngineCore]


def fake_async_llm(*, max_model_len: int = 512, num_blocks: int = 256, max_num_seqs: int = 64,
                   max_num_waiting: int = 4096, policy: SchedulingPolicy = "fcfs",
                   step_s: float = 0.0, names: tuple[str, ...] = ("fake-model", "alias/fake"),
                   hold_loading: bool = False, load_error: OctavoError | None = None,
                   server: ServerSection | None = None, can_restart: bool = False,
                   on_death: Callable[[OctavoError], None] | None = None) -> FakeEngine:
    """A fake engine. hold_loading: it loads only when may_load is set. load_error: it cannot.
    can_restart: an engine that died is started again, as often as `server` says."""
    config = EngineConfig(
        model=ModelSection(path="/nowhere", served_model_names=names,
                           max_model_len=max_model_len),
        cache=CacheSection(num_blocks=num_blocks),
        scheduler=SchedulerSection(max_num_seqs=max_num_seqs, max_model_len=max_model_len,
                                   max_num_waiting=max_num_waiting, policy=policy),
        server=server or ServerSection(),
    )
    executor = ScriptedExecutor(step_s=step_s)
    may_load = threading.Event()
    cores: list[EngineCore] = []
    if not hold_loading:
        may_load.set()

    def build(config: EngineConfig) -> tuple[EngineCore, EngineReady]:
        may_load.wait()
        if load_error is not None:
            raise load_error
        manager = KVCacheManager(config.cache, b"fake")
        core = EngineCore(Scheduler(config.scheduler, manager), executor)
        cores.append(core)
        return core, EngineReady(
            max_model_len=max_model_len, max_kv_tokens=num_blocks * config.cache.block_size,
            vocab_size=VOCAB_SIZE, block_size=config.cache.block_size, num_blocks=num_blocks,
            max_num_seqs=max_num_seqs, backend="fake", load_seconds=0.0)

    restart = functools.partial(ThreadHost, config, build) if can_restart else None
    llm = AsyncLLM.from_parts(config, _parts(), ThreadHost(config, build), restart=restart,
                              on_death=on_death)
    return FakeEngine(llm, executor, may_load, cores)


def _parts() -> FrontEndParts:
    tokenizer = byte_tokenizer()
    template = ChatTemplate(_TEMPLATE, bos_token="<|bos|>", eos_token="<|eos|>",
                            control_tokens=CONTROL_TOKENS)
    rope = RopeConfig(theta=1e4, dim=8, style="neox")
    model = ModelConfig(
        architecture="llama", vocab_size=VOCAB_SIZE, hidden_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, intermediate_size=8, max_position_embeddings=8192,
        rms_norm_eps=1e-5, rope=rope, sliding_window=None, tie_word_embeddings=True,
        attention_bias=False, qk_norm=False, hidden_act="silu",
        eos_token_ids=(EOS_ID, IM_END_ID), bos_token_id=BOS_ID)
    return FrontEndParts(tokenizer, template, model, (EOS_ID, IM_END_ID))
