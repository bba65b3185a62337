"""Engine pieces without a model: a scripted executor, and cores and front ends over it."""

from collections.abc import Sequence

from octavo.config import CacheSection, EngineConfig, ModelSection, SchedulerSection
from octavo.core.messages import EngineReady, TokenLogprobs
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.engine.core import EngineCore
from octavo.engine.factory import FrontEndParts
from octavo.engine.input_processor import InputLimits, InputProcessor
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.scheduler import Scheduler
from octavo.testing.byte_tokenizer import EOS_ID, VOCAB_SIZE
from octavo.testing.fake_executor import FakeExecutor
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.model_config import ModelConfig, RopeConfig

EOS = EOS_ID
VOCAB = VOCAB_SIZE


def config_of(*, num_blocks: int = 64, max_model_len: int = 256, max_num_seqs: int = 8,
              max_num_batched_tokens: int = 64, max_num_waiting: int = 64) -> EngineConfig:
    return EngineConfig(
        model=ModelSection(path="none", served_model_names=("fake",),
                           max_model_len=max_model_len),
        cache=CacheSection(num_blocks=num_blocks),
        scheduler=SchedulerSection(max_num_batched_tokens=max_num_batched_tokens,
                                   max_num_seqs=max_num_seqs, max_model_len=max_model_len,
                                   max_num_waiting=max_num_waiting),
    )


def ready_of(config: EngineConfig) -> EngineReady:
    return EngineReady(
        max_model_len=config.model.max_model_len,
        max_kv_tokens=config.cache.num_blocks * 16, vocab_size=VOCAB, block_size=16,
        num_blocks=config.cache.num_blocks, max_num_seqs=config.scheduler.max_num_seqs,
        backend="fake", load_seconds=0.0)


def core_of(config: EngineConfig, executor: object, *,
            async_scheduling: bool = False) -> EngineCore:
    manager = KVCacheManager(config.cache, b"test")
    return EngineCore(Scheduler(config.scheduler, manager), executor,  # type: ignore[arg-type]
                      async_scheduling=async_scheduling)


def build_fake(config: EngineConfig, *,
               async_scheduling: bool = False) -> tuple[EngineCore, EngineReady]:
    executor = FakeExecutor(num_blocks=config.cache.num_blocks, block_size=16, vocab_size=VOCAB)
    return core_of(config, executor, async_scheduling=async_scheduling), ready_of(config)


def parts_of(tokenizer: Tokenizer) -> FrontEndParts:
    model = ModelConfig(
        architecture="llama", vocab_size=VOCAB, hidden_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, intermediate_size=8, max_position_embeddings=256,
        rms_norm_eps=1e-5, rope=RopeConfig(theta=1e4, dim=8, style="neox"), sliding_window=None,
        tie_word_embeddings=True, attention_bias=False, qk_norm=False, hidden_act="silu",
        eos_token_ids=(EOS,), bos_token_id=None)
    template = ChatTemplate(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
        bos_token="", eos_token="<|eos|>", control_tokens=())
    return FrontEndParts(tokenizer, template, model, (EOS,))


def input_processor(tokenizer: Tokenizer, *, max_model_len: int = 256,
                    max_kv_tokens: int = 1024,
                    default_seed: int | None = None) -> InputProcessor:
    return InputProcessor(
        tokenizer,
        InputLimits(max_model_len=max_model_len, max_kv_tokens=max_kv_tokens, vocab_size=VOCAB,
                    default_seed=default_seed),
        eos_token_ids=(EOS,))


class ScriptedExecutor:
    """Draws the bytes of a fixed text for every request, then EOS; logprob -position.

    fail_at: the step (from 1) that raises.
    """

    def __init__(self, script: str | Sequence[int], *, fail_at: int = 0) -> None:
        self._script = list(script.encode()) if isinstance(script, str) else list(script)
        self._rows: dict[str, list[int]] = {}  # known tokens, output tokens, computed
        self._params: dict[str, tuple[int, int | None]] = {}
        self._fail_at = fail_at
        self.num_steps = 0
        self.closed = False

    def submit(self, so: SchedulerOutput) -> SchedulerOutput:
        return so

    def collect(self, so: SchedulerOutput) -> ModelRunnerOutput:
        self.num_steps += 1
        if self.num_steps == self._fail_at:
            raise RuntimeError("the machine is on fire")
        for request_id in so.finished_request_ids:
            self._rows.pop(request_id, None)
        for new in so.new_requests:
            n = len(new.token_ids)
            self._rows[new.request_id] = [n, n - new.num_prompt_tokens, new.num_computed_tokens]
            self._params[new.request_id] = (new.sample_index, new.params.logprobs)
        for cached in so.cached_requests:
            self._rows[cached.request_id][2] = cached.num_computed_tokens
        sampled, logprobs = {}, {}
        for request_id, count in so.num_scheduled_tokens.items():
            row = self._rows[request_id]
            row[2] += count
            if row[2] < row[0]:
                continue
            position = row[1]
            token = self._script[position] if position < len(self._script) else EOS
            sampled[request_id] = [token]
            if self._params[request_id][1] is not None:
                logprobs[request_id] = [TokenLogprobs(token, -float(position), 1, [token, 0],
                                                      [-float(position), -99.0])]
            row[0] += 1
            row[1] += 1
        return ModelRunnerOutput(step_id=so.step_id, sampled_token_ids=sampled,
                                 logprobs=logprobs, num_native_calls=1)

    def describe(self) -> dict[str, str]:
        return {"backend": "script"}

    def shutdown(self) -> None:
        self.closed = True
