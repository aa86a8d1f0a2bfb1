"""The digest of a mix that a state file names without one, for the line that pins it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from epochal.data_providers.open_data import mix_text
from epochal.state.config.data_location import UNKNOWN_DIGEST, WeightedHttp
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError, Mistake
from epochal.state.wire import sha256_hex

FETCH_S = 10.0
"""Maximum time to fetch a mix for its digest; without it the person computes it."""


def with_digest(mistakes: Sequence[Mistake], state: StateFile) -> tuple[Mistake, ...]:
    """Return the mistakes; the line that pins the run's mix has its digest, if the mix can be fetched now. Blocks."""
    location = state.model.LLM.data_location
    if not any(UNKNOWN_DIGEST in mistake.allowed for mistake in mistakes) or not isinstance(location, WeightedHttp):
        return tuple(mistakes)
    try:
        digest = asyncio.run(_digest_at(location.place))
    except (EpochalError, TimeoutError):
        return tuple(mistakes)
    return tuple(replace(one, allowed=one.allowed.replace(UNKNOWN_DIGEST, digest)) for one in mistakes)


async def _digest_at(place: str) -> str:
    async with asyncio.timeout(FETCH_S):
        return sha256_hex(await mix_text(place, None))
