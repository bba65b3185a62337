"""Turns a step's output rows into TokenLogprobs. Copies, because the rows live for one step."""

import numpy as np
import numpy.typing as npt

from octavo.core.messages import TokenLogprobs
from octavo.graph.step_arrays import StepOutputs


def row_logprobs(outputs: StepOutputs, row: int, num_top: int) -> TokenLogprobs:
    """The entry of one row, with its `num_top` most likely alternatives."""
    return TokenLogprobs(
        int(outputs.sampled[row]),
        float(outputs.logprob[row]),
        int(outputs.rank[row]),
        outputs.top_ids[row, :num_top].tolist() if num_top else [],
        outputs.top_logprobs[row, :num_top].tolist() if num_top else [],
    )


def rows_logprobs(outputs: StepOutputs, rows: npt.NDArray[np.int64],
                  num_top: int) -> list[TokenLogprobs]:
    """Entries of several rows with one count of alternatives, in order."""
    return [row_logprobs(outputs, row, num_top) for row in rows.tolist()]
