"""Worker: one model loaded for one engine. Opens the file, records the graph, lowers it, runs it.

The only place of the worker that knows files and backends by name.
"""

from collections.abc import Mapping

from octavo.backends.seam import Backend, KVOptions, LoadedModel, WeightSource
from octavo.config import BackendName, EngineConfig
from octavo.core.sampling_params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_TOKEN_IDS,
)
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.errors import ConfigError
from octavo.graph.step_arrays import StepLimits
from octavo.models.registry import record
from octavo.weights.load_quantize import QuantizedWeights
from octavo.weights.model_file import open_model
from octavo.worker.model_runner import ModelRunner

# ids banned at once: bad words (each tokenized twice), and what min_tokens holds back:
# stop ids and the model's EOS ids
_MAX_BANS = 2 * MAX_BAD_WORDS + MAX_STOP_TOKEN_IDS + 64

_INT32_MAX = 2**31 - 1  # the sampler's tables are indexed with this type


class Worker:
    """A model runner over a loaded model."""

    def __init__(self, model: LoadedModel, runner: ModelRunner, *, vocab_size: int) -> None:
        self._model = model
        self._runner = runner
        self.vocab_size = vocab_size

    @classmethod
    def load(cls, config: EngineConfig) -> "Worker":
        """Loads what config.model names. Raises ModelLoadError, UnsupportedModelError, ConfigError
        (the memory does not suffice)."""
        try:
            return cls._load(config)
        except MemoryError:
            raise ConfigError(
                f"num_blocks is {config.cache.num_blocks}, max_num_batched_tokens "
                f"{config.scheduler.max_num_batched_tokens} and max_num_seqs "
                f"{config.scheduler.max_num_seqs}: with the model this does not fit the memory; "
                "give less", param="num_blocks") from None

    @classmethod
    def _load(cls, config: EngineConfig) -> "Worker":
        with open_model(config.model.path) as model_file:
            graph = record(model_file.config, model_file.tensors.keys())
            limits = step_limits(config, graph.vocab_size, graph.num_kv_groups)
            weights: WeightSource = model_file
            if config.model.quantization is not None:
                weights = QuantizedWeights(model_file, config.model.quantization)
            model = load_backend(config.model.backend).load(
                graph, weights,
                kv=KVOptions(block_size=config.cache.block_size,
                             num_blocks=config.cache.num_blocks, dtype=config.cache.dtype,
                             merge_shared_prefix=config.cache.merge_shared_prefix),
                limits=limits, num_threads=config.model.num_threads,
            )
        runner = ModelRunner(model, limits, block_size=config.cache.block_size,
                             max_model_len=config.model.max_model_len)
        return cls(model, runner, vocab_size=graph.vocab_size)

    def execute(self, so: SchedulerOutput) -> ModelRunnerOutput:
        """Runs one step."""
        return self._runner.execute(so)

    def describe(self) -> Mapping[str, str]:
        """Facts for people."""
        return self._model.describe()

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self._runner.close()


def step_limits(config: EngineConfig, vocab_size: int, num_kv_groups: int = 1) -> StepLimits:
    """Capacity for every step the scheduler may make under this config."""
    seqs = config.scheduler.max_num_seqs
    tokens = max(config.scheduler.max_num_batched_tokens, seqs)
    max_model_len = config.model.max_model_len
    # each request may list every distinct token it has seen (penalties), or as many biases and
    # bans as a request may ask for; untouched pages of these arrays cost nothing
    per_seq = max(min(max_model_len + 1, vocab_size), MAX_LOGIT_BIAS + _MAX_BANS)
    if seqs * per_seq > _INT32_MAX:
        raise ConfigError(f"max_num_seqs is {seqs}: give at most {_INT32_MAX // per_seq} with "
                          f"max_model_len={max_model_len}", param="max_num_seqs")
    return StepLimits(
        max_tokens=tokens, max_seqs=seqs,
        max_rows=tokens,  # prompt logprobs score every row of a step
        max_blocks_per_seq=-(-max_model_len // config.cache.block_size),
        num_kv_groups=num_kv_groups, max_mask_rows=seqs, max_sparse=seqs * per_seq,
        max_report_ids=MAX_LOGPROB_TOKEN_IDS, vocab_size=vocab_size,
    )


def load_backend(name: BackendName) -> Backend:
    """The backend of that name. Imported when needed: the native module may not be built."""
    if name == "cpu":
        from octavo.backends.cpu.backend import CpuBackend

        return CpuBackend()
    from octavo.backends.reference.backend import ReferenceBackend

    return ReferenceBackend()
