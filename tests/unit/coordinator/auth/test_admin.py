"""The operator's token."""

import hashlib

import pytest

from epochal.coordinator.auth.admin import AdminToken
from epochal.state.errors import Refused
from tests.support.simulate.memory_store import MemoryStore


async def test_admin_token_is_shown_once_and_kept_as_a_hash() -> None:
    keys = MemoryStore(0).keys
    admin, token = await AdminToken.load_or_create(keys)
    assert token is not None
    admin.check(token)
    again, shown = await AdminToken.load_or_create(keys)
    assert shown is None
    again.check(token)
    assert await keys.admin_token_sha256() == hashlib.sha256(token.encode()).digest()
    for wrong in ("", token[:-1], token + "x"):
        with pytest.raises(Refused) as refused:
            again.check(wrong)
        assert refused.value.kind == "forbidden"


async def test_admin_token_made_anew_ends_the_one_before() -> None:
    keys = MemoryStore(0).keys
    _, lost = await AdminToken.load_or_create(keys)
    admin, token = await AdminToken.load_or_create(keys, anew=True)
    assert lost is not None
    assert token is not None
    again, shown = await AdminToken.load_or_create(keys)
    assert shown is None
    for kept in (admin, again):
        kept.check(token)
        with pytest.raises(Refused, match="--new-admin-token"):
            kept.check(lost)
