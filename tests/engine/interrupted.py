"""A program of its own: Ctrl-C at many moments of LLM.generate, each at a chosen line of code.

Arguments: model folder, lines between two moments. Prints how many interrupts there were.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

from octavo import LLM, SamplingParams
from octavo.engine.outputs import RequestOutput

PROMPTS = ["a", "some longer prompt", "b" * 40]
PARAMS = SamplingParams(temperature=1.0, seed=7, max_tokens=4, ignore_eos=True, n=2)


class PressAt:
    """Sends this process SIGINT when the engine's code comes to its `target`-th line."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.num_lines = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if "/octavo/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.target:
                os.kill(os.getpid(), signal.SIGINT)
        return self


def bits(outputs: list[RequestOutput]) -> object:
    return [[(c.token_ids, c.text) for c in o.outputs] for o in outputs]


def traced(llm: LLM, press: PressAt) -> bool:
    """One generate() under the trace; whether it was interrupted."""
    sys.settrace(press)
    try:
        llm.generate(PROMPTS, PARAMS)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def main(folder: str, stride: int) -> None:
    with LLM(folder, max_model_len=128, num_blocks=64, enable_prefix_caching=False) as llm:
        expected = bits(llm.generate(PROMPTS, PARAMS))
        whole = PressAt(0)
        assert not traced(llm, whole)
        moments = range(1, whole.num_lines, stride)
        for moment in moments:
            assert traced(llm, PressAt(moment)), f"the Ctrl-C at line {moment} was lost"
            stats = llm.stats()
            assert stats.num_running == stats.num_waiting == 0
            assert bits(llm.generate(PROMPTS, PARAMS)) == expected, f"line {moment}"
            assert llm.stats().num_free_blocks == 64
    print(len(moments))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
