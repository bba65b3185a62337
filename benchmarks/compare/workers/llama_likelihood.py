"""llama.cpp's likelihood of given tokens, in Octavo's protocol (octavo/bench/likelihood.py).

Runs in the environment of llama-cpp-python: `python llama_likelihood.py MODEL WINDOWS THREADS`,
where WINDOWS is a JSON file, a list of windows of token ids. Prints {"mean_nll": N, "version": V}
as the last line. Each window is computed from position 0; the tokens of its second half are scored.
"""

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

_UBATCH = 512


def main() -> None:
    """Reads the arguments, prints the mean in nats and the version of llama-cpp-python."""
    model, windows = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    size = len(windows[0])
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llm = llama_cpp.Llama(
        model, n_ctx=size, n_batch=_UBATCH, n_ubatch=_UBATCH, n_threads=int(sys.argv[3]),
        n_threads_batch=int(sys.argv[3]), logits_all=True, verbose=False)
    scores: list[np.ndarray] = []
    for window in windows:
        llm.reset()
        llm.eval(window)
        # Row p predicts token p + 1.
        rows = llm.scores[size // 2 - 1 : size - 1].astype(np.float64)
        targets = np.array(window[size // 2 :])
        peak = rows.max(1)
        total = np.log(np.exp(rows - peak[:, None]).sum(1)) + peak
        scores.append(total - rows[np.arange(len(rows)), targets])
    mean_nll = float(np.concatenate(scores).mean())
    print(json.dumps({"mean_nll": mean_nll, "version": llama_cpp.__version__}))


if __name__ == "__main__":
    main()
