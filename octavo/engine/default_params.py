"""The model makers' advice (generation_config) as SamplingParams."""

from collections.abc import Mapping

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError, ModelLoadError


def default_sampling_params(defaults: Mapping[str, float | int]) -> SamplingParams:
    """SamplingParams with the advised values over ours.

    Raises ModelLoadError when the model's file advises something impossible.
    """
    fields: dict[str, float | int] = {}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        if name in defaults:
            fields[name] = defaults[name]
    if "top_k" in fields:
        fields["top_k"] = int(fields["top_k"])
    try:
        return SamplingParams(**fields)  # type: ignore[arg-type]
    except InvalidRequestError as error:
        raise ModelLoadError(f"generation_config: {error.message}") from None
