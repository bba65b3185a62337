"""Octavo's worker: its engine core, in the environment this program runs in."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from stdio import Measured, serve

from octavo.bench.engine_bench import Case, EngineBench
from octavo.bench.machine_probe import probe_machine
from octavo.bench.roofline import model_cost
from octavo.config_resolve import EngineArgs
from octavo.engine.factory import resolve_args

_PROBE_FOOTPRINTS_MB = (64, 96, 128, 256)


class OctavoEngine:
    """See stdio.Engine."""

    def __init__(self) -> None:
        self._bench: EngineBench | None = None

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]:
        blocks = max_sequences * (-(-max_context // 16) + 4)
        args = EngineArgs(model=model, num_threads=threads, max_num_seqs=max_sequences,
                          max_model_len=max_context, allow_long_max_model_len=True,
                          num_blocks=blocks)
        self._bench = EngineBench(resolve_args(args).config)
        facts = self._bench.describe()
        return {"isa": facts.get("isa", ""), "threads": facts.get("threads", "")}

    def prefill(self, prompt: list[int]) -> Measured:
        run = self._loaded().run(Case("pp", len(prompt)), [prompt])
        return run.tokens, run.seconds, run.cpu_s

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        self._generation = self._loaded().generate(prompts, tokens)

    def window(self, tokens: int) -> Measured:
        run = self._generation.window(tokens)
        return run.tokens, run.seconds, run.cpu_s

    def end(self) -> None:
        self._generation.end()

    def vocab_size(self) -> int:
        return self._loaded().vocab_size

    def probe(self) -> dict[str, Any]:
        """A further command: what the machine can do now, and what the model asks of it."""
        config = self._loaded().config
        probe = probe_machine(threads=config.model.num_threads, samples=3,
                              footprints_mb=_PROBE_FOOTPRINTS_MB)
        cost = model_cost(config)
        return {"probe": probe.to_json(), "cost": dataclasses.asdict(cost)}

    def _loaded(self) -> EngineBench:
        if self._bench is None:
            raise RuntimeError("load comes first")
        return self._bench


if __name__ == "__main__":
    serve(OctavoEngine())
