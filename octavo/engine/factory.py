"""Puts an engine together: EngineArgs -> EngineConfig -> EngineCore. The composition root.

Everything here runs once, at load.
"""

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from octavo.backends.cpu.backend import native_problem
from octavo.config import CacheSection, EngineConfig, ServerSection
from octavo.config_resolve import EngineArgs, Resolution, resolve_config
from octavo.core.messages import EngineReady
from octavo.engine.core import EngineCore
from octavo.engine.input_processor import InputLimits
from octavo.engine.load_arguments import model_argument
from octavo.executor.inproc import InprocExecutor
from octavo.grammar.backend import GrammarBackend
from octavo.grammar.manager import GrammarManager
from octavo.kvcache.manager import KVCacheManager
from octavo.machine import machine_facts
from octavo.scheduler.scheduler import Scheduler
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.loading import load_chat_template, load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.hub import canonical_alias, resolve
from octavo.weights.load_quantize import LOAD_TYPES, check_quantizable
from octavo.weights.model_config import ModelConfig
from octavo.weights.model_file import open_model
from octavo.worker.worker import Worker


@dataclasses.dataclass(slots=True, frozen=True)
class FrontEndParts:
    """What the front end needs of a model file."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    model: ModelConfig
    eos_token_ids: tuple[int, ...]

    def limits(self, config: EngineConfig) -> InputLimits:
        return InputLimits(
            max_model_len=config.model.max_model_len,
            max_kv_tokens=config.cache.num_blocks * config.cache.block_size,
            vocab_size=self.model.vocab_size, default_seed=config.model.seed,
        )


def resolve_args(args: EngineArgs, *, server: ServerSection | None = None) -> Resolution:
    """Finds (or downloads) the model, looks at it and at the machine, and resolves the config.

    Raises ModelNotFoundError, ModelLoadError, UnsupportedModelError, ConfigError.
    """
    args = dataclasses.replace(args, model=model_argument(args.model))
    path = resolve(args.model)
    with open_model(path) as model_file:
        model = model_file.config
        own_name = model_file.name
        if args.quantization in LOAD_TYPES:
            check_quantizable(model_file, args.quantization)
    if not args.served_model_name:
        # an alias is served under both its names
        alias = canonical_alias(args.model)
        names = (own_name,) if alias is None else (alias, own_name)
        args = dataclasses.replace(args, served_model_name=names)
    return resolve_config(args, path=str(path), model=model,
                          machine=machine_facts(has_native=native_problem() is None),
                          server=server)


def load_front_end(config: EngineConfig, *, chat_template: str | None = None) -> FrontEndParts:
    """Tokenizer, chat template and shape of the config's model."""
    with open_model(config.model.path) as model_file:
        tokenizer = load_tokenizer(model_file)
        tokenizer.limit_text(config.model.max_model_len)
        template = load_chat_template(model_file, tokenizer, path=chat_template)
        model = model_file.config
    eos = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *model.eos_token_ids)))
    return FrontEndParts(tokenizer, template, model, eos)


def build_core(
    config: EngineConfig, *, warm_grammar: bool = False,
    kv_cache_manager: Callable[[CacheSection, bytes], KVCacheManager] = KVCacheManager,
) -> tuple[EngineCore, EngineReady]:
    """Loads the model and joins it with a scheduler over a KV cache manager of that kind.

    warm_grammar: begin to load the grammar backend when the rest is loaded. It takes most of a
    second with the interpreter lock held: better now than in the middle of others' requests.
    """
    started = time.perf_counter()
    worker = Worker.load(config)
    grammar = GrammarManager(functools.partial(_load_grammar_backend, config),
                             jump_forward=config.scheduler.jump_forward)
    manager = kv_cache_manager(config.cache, _namespace(config))
    core = EngineCore(Scheduler(config.scheduler, manager), InprocExecutor(worker), grammar,
                      async_scheduling=config.scheduler.async_scheduling)
    ready = EngineReady(
        max_model_len=config.model.max_model_len,
        max_kv_tokens=config.cache.num_blocks * config.cache.block_size,
        vocab_size=worker.vocab_size, block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks, max_num_seqs=config.scheduler.max_num_seqs,
        backend=config.model.backend, load_seconds=time.perf_counter() - started,
    )
    if warm_grammar:
        grammar.warm()
    return core, ready


def _load_grammar_backend(config: EngineConfig) -> GrammarBackend:
    # imported when needed: requests without a grammar do not pay for it
    from octavo.grammar.llguidance_backend import LLGuidanceBackend

    parts = load_front_end(config)
    return LLGuidanceBackend(parts.tokenizer.to_json(), vocab_size=parts.model.vocab_size,
                             eos_token_ids=parts.eos_token_ids)


def _namespace(config: EngineConfig) -> bytes:
    """Names the weights, for block hashes: the file as it is now."""
    path = Path(config.model.path)
    stat = path.stat()
    text = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{config.model.backend}"
    if config.model.quantization is not None:
        text += f"|{config.model.quantization}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
