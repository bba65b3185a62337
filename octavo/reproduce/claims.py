"""The claims there are, in the order of the list. Imports each claim's file; knows nothing else."""

from collections.abc import Sequence

from octavo.errors import ConfigError
from octavo.reproduce import chunked, cow, invariance, orca, paged, radix, structured
from octavo.reproduce.claim import Claim

_ALL = (
    orca.CLAIM,
    paged.CLAIM,
    radix.CLAIM,
    chunked.CLAIM,
    cow.CLAIM,
    structured.CLAIM,
    invariance.CLAIM,
)

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in _ALL}


def claim_named(name: str, *, others: Sequence[str] = ()) -> Claim:
    """Raises ConfigError that lists the names. others: what else may stand in a claim's place."""
    if name not in CLAIMS:
        raise ConfigError(f"{name!r} is not a claim: give one of {', '.join([*CLAIMS, *others])}",
                          param="name")
    return CLAIMS[name]
