"""Requests that a client must not make, over real HTTP: each is refused by name, and the run goes on."""

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.state.errors import Refused
from epochal.state.messages.requests import ChallengeRequest
from tests.support.drive.by_hand import joined_by_hand
from tests.support.drive.processes import real_run


async def refused(request: Awaitable[object]) -> Refused:
    """Return the refusal of a request that must not succeed."""
    with pytest.raises(Refused) as caught:
        await request
    return caught.value


async def test_replayed_join_and_a_nonce_of_another_key_are_refused(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run, joined_by_hand(run, 1) as hand, joined_by_hand(run, 2) as other:
        request = await hand.join_request()
        await hand.api.join(request)
        assert (await refused(hand.api.join(request))).kind == "nonce-consumed"
        challenge = await hand.api.challenge(ChallengeRequest(other.key.public_key))
        stolen = replace(request, nonce=challenge.nonce)
        assert (await refused(hand.api.join(stolen))).kind == "nonce-invalid"
        await run.kill_coordinator()
        await run.start_coordinator()
        await run.until(lambda document: True)
        assert (await refused(hand.api.join(request))).kind == "nonce-consumed", "a restart forgets no nonce"
