"""Claim: a headline of the literature that a command measures. What one is given and gives.

Knows no claim by name (claims.py does) and no terminal (output.py does).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from octavo.bench.machine_probe import cpu_model
from octavo.config import CacheSection, EngineConfig
from octavo.config_resolve import EngineArgs
from octavo.engine.core import EngineCore
from octavo.engine.factory import build_core, resolve_args
from octavo.errors import ConfigError
from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.finding import Cell, Finding

MakeManager = Callable[[CacheSection, bytes], KVCacheManager]
_SPECIAL_OPTIONS = ("trace", "data", "url")


@dataclasses.dataclass(slots=True, frozen=True, kw_only=True)
class Options:
    """What the user chose.

    quick: small sizes, a few seconds: to see that it runs. trace: request lengths from this file
    (Azure LLM inference CSV or Mooncake JSON lines). data: a claim's own input. url: an
    OpenAI-compatible server, for claims that can measure one. seed: of every random choice.
    """

    model: str
    quick: bool = False
    num_threads: int | None = None
    trace: Path | None = None
    data: Path | None = None
    url: str | None = None
    seed: int = 0

    def engine(self) -> EngineArgs:
        """Engine arguments to start from, with dataclasses.replace: no prefix cache, so that arms
        that see the same prompts compute the same."""
        return EngineArgs(model=self.model, num_threads=self.num_threads, seed=self.seed,
                          enable_prefix_caching=False)


class Progress(Protocol):
    """Where a claim says how far it is. Every loop over engine steps calls check()."""

    def stage(self, what: str, share: float) -> None:
        """Begin a stage; all before it make up `share` (0 to 1) of the claim."""

    def advance(self, share: float) -> None:
        """So much (0 to 1) of the claim is done; what lies behind is ignored."""

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed: here, and not inside a step."""


class NoProgress:
    """Progress that nobody watches."""

    def stage(self, what: str, share: float) -> None:
        """Nothing."""

    def advance(self, share: float) -> None:
        """Nothing."""

    def check(self) -> None:
        """Nothing: Ctrl-C is raised wherever it comes."""


def _nothing(options: Options) -> None:
    """No input to look at."""


@dataclasses.dataclass(slots=True, frozen=True)
class Claim:
    """name: of the command. title: a line for the list. run: measures it; raises OctavoError.
    takes: which of the options trace, data and url it has a use for. check_input: raises
    ConfigError for one that cannot be used (no such file, no server there), in moments."""

    name: str
    title: str
    run: Callable[[Options, Progress], Finding]
    takes: tuple[str, ...] = ()
    check_input: Callable[[Options], None] = _nothing

    def taken(self, options: Options) -> Options:
        """The options without those that it has no use for."""
        return dataclasses.replace(
            options, trace=options.trace if "trace" in self.takes else None,
            data=options.data if "data" in self.takes else None,
            url=options.url if "url" in self.takes else None)

    def check(self, options: Options) -> None:
        """Raises ConfigError for an option that would be ignored, or an input that cannot be
        used: before anything is measured."""
        for name in _SPECIAL_OPTIONS:
            value = getattr(options, name)
            if value is not None and name not in self.takes:
                raise ConfigError(f"{name} is {str(value)!r}: the claim {self.name} has no use for "
                                  "it, leave it out", param=name)
        self.check_input(options)


@dataclasses.dataclass(slots=True, frozen=True)
class Engine:
    """A loaded engine core to step, with its configuration."""

    core: EngineCore
    config: EngineConfig
    vocab_size: int
    kv: KVCacheManager

    def facts(self) -> dict[str, Cell]:
        """What a reader must know to judge figures."""
        found = self.core.describe()
        return {"model": Path(self.config.model.path).name,
                "backend": f"{self.config.model.backend} {found.get('isa', '')}".strip(),
                "threads": self.config.model.num_threads, "KV": self.config.cache.dtype,
                "cpu": cpu_model()}


@contextmanager
def open_engines(*args: EngineArgs,
                 kv_cache_managers: Sequence[MakeManager] = ()) -> Iterator[list[Engine]]:
    """An engine for each, shut down at the end; each has its own copy of the model.

    kv_cache_managers: of each engine, where they are not all the usual one. Raises
    ModelNotFoundError, ModelLoadError, UnsupportedModelError, ConfigError.
    """
    managers = kv_cache_managers or [KVCacheManager] * len(args)
    engines: list[Engine] = []
    try:
        for one, manager in zip(args, managers, strict=True):
            engines.append(_open(one, manager))
        yield engines
    finally:
        for engine in engines:
            engine.core.shutdown()


def _open(args: EngineArgs, manager: MakeManager) -> Engine:
    made: list[KVCacheManager] = []

    def make(section: CacheSection, namespace: bytes) -> KVCacheManager:
        made.append(manager(section, namespace))
        return made[0]

    config = resolve_args(args).config
    core, ready = build_core(config, kv_cache_manager=make)
    return Engine(core, config, ready.vocab_size, made[0])
