"""Receipts over HTTP: signed, of a member or a former one, for the key's owner alone, and checkable offline."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator_client.client_key import ClientKey, create_key
from epochal.coordinator_client.receipt_requests import get_receipt
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.intervals import total_batches
from epochal.state.messages.receipts import MAX_ISSUED_S, Receipt, ReceiptRequest, check_receipt, receipt_message
from epochal.state.messages.requests import ChallengeRequest, join_message
from epochal.state.wire import canonical_json, client_id_of
from tests.support.drive.cli import run_main
from tests.support.drive.played_rounds import played_run
from tests.support.drive.served import Served, WireClient, problem

ROUNDS = 3
OTHER_KEY = "ab" * 32


@pytest.fixture
async def played() -> AsyncIterator[tuple[Served, list[WireClient]]]:
    async with played_run(ROUNDS) as run:
        yield run


def api_of(coordinator: Served) -> ViewerClient:
    return ViewerClient(coordinator.http, coordinator.service.run.state_file.run_id)


async def test_receipts_count_what_was_applied_and_are_signed(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    run = coordinator.service.run
    found = [await get_receipt(api_of(coordinator), client.key) for client in clients]
    assert sum(one.tokens for one in found) == run.tokens_applied
    assert sum(one.batches for one in found) == run.work.batches_applied
    for client, one in zip(clients, found, strict=True):
        mine = [
            (outcome.step, total_batches(entry.assignment))
            for outcome in run.models.outcomes.values()
            for entry in outcome.entries
            if entry.client_id == client.client_id
        ]
        assert (one.rounds, one.batches) == (len(mine), sum(count for _, count in mine))
        assert (one.first_step, one.last_step) == (mine[0][0], mine[-1][0])
        assert one.weighed_tokens == one.tokens, "all results were as long as usual"
        assert (one.step, one.compacted_segments) == (ROUNDS, 0)
        check_receipt(one, run.identity.coordinator_key)


async def test_member_that_has_left_gets_the_same_receipt(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    before = await get_receipt(api_of(coordinator), clients[0].key)
    assert (await clients[0].send("DELETE", "/clients/me")).status_code == 204
    after = await get_receipt(api_of(coordinator), clients[0].key)
    assert replace(after, issued_s=before.issued_s, signature=before.signature) == before


async def test_receipt_is_the_same_after_its_rows_were_folded_and_read_again(
    played: tuple[Served, list[WireClient]],
) -> None:
    coordinator, _ = played
    history = coordinator.insight.projection
    read = Projection.decoded(history.encoded())
    assert read.book.records() == history.book.records()
    assert (read.outcome_chain, read.outcome_step) == (history.outcome_chain, history.outcome_step)


async def test_only_the_owner_of_a_known_key_gets_a_receipt(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    api, key = api_of(coordinator), clients[0].key
    with pytest.raises(Refused, match="was never a member"):
        await get_receipt(api, ClientKey.ephemeral())
    challenge = await api.challenge(ChallengeRequest(key.public_key))
    parts = api.run_id, challenge.nonce, key.public_key, challenge.coordinator_key, "testserver"
    for signature in (ClientKey.ephemeral().sign(receipt_message(*parts)), key.sign(join_message(*parts))):
        asked = ReceiptRequest(key.public_key, challenge.nonce, signature, "testserver")
        answer = await clients[0].send("POST", "/clients/receipt", asked)
        assert problem(answer) in ("unauthorized", "host-not-allowed")


RECEIPT = Receipt("run", "ab" * 16, OTHER_KEY, OTHER_KEY, "cd" * 16, 1.0, 3, "ef" * 32, 0, 2, 4, 8, 7.5, 1, 3)  # type: ignore[arg-type]


def signed_receipt(**changed: Any) -> tuple[Receipt, str]:
    """Return a receipt and the coordinator's key."""
    key, member = SigningKey(bytes(range(32))), ClientKey.from_seed(bytes(32))
    own = {"coordinator_key": key.public_key_hex, "public_key": member.public_key, "client_id": member.client_id}
    assert member.client_id == client_id_of(bytes.fromhex(member.public_key))
    return key.signed(replace(RECEIPT, **own | changed)), key.public_key_hex


@given(st.sampled_from([name for name in Receipt.__slots__ if name not in ("signature",)]), st.data())
def test_receipt_with_any_field_changed_is_refused(name: str, data: st.DataObject) -> None:
    receipt, coordinator_key = signed_receipt()
    check_receipt(receipt, coordinator_key)
    value = getattr(receipt, name)
    other: st.SearchStrategy[object] = st.integers(0, 99)
    if isinstance(value, str):
        other = st.sampled_from("0123").map(lambda digit: value[:-1] + digit)
    changed = data.draw(other)
    if changed != value:
        with pytest.raises(InvalidDocument):
            check_receipt(replace(receipt, **{name: changed}))  # type: ignore[arg-type]


async def test_command_checks_a_receipt_without_a_coordinator(
    played: tuple[Served, list[WireClient]], tmp_path: Path
) -> None:
    coordinator, clients = played
    found, file = await get_receipt(api_of(coordinator), clients[0].key), tmp_path / "receipt.json"
    file.write_bytes(canonical_json(found))
    key = coordinator.service.run.identity.coordinator_key
    run_main("receipt", "check", str(file), "--coordinator-key", key).expect(0, "with the key that you named")
    typed = f" {key.upper()}\n"
    run_main("receipt", "check", str(file), "--coordinator-key", typed).expect(0, "with the key that you named")
    for junk in ("junk", key[1:], f"0x{key}"):
        ran = run_main("receipt", "check", str(file), "--coordinator-key", junk)
        ran.expect(2, f"--coordinator-key '{junk}' is no public key; allowed: 64 hex digits")
    run_main("receipt", "check", str(file)).expect(0, f"{found.tokens:,} tokens", "compare that with the run's")
    run_main("receipt", "check", str(file), "--coordinator-key", OTHER_KEY).expect(1, f"expected: {OTHER_KEY}")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokens": 10**9}))
    run_main("receipt", "check", str(file)).expect(1, "or was changed")


@pytest.mark.parametrize(
    ("issued_s", "code", "said"),
    [
        (0.0, 0, "1970-01-01T00:00:00"),
        (MAX_ISSUED_S, 0, "9999-12-31T23:59:59"),
        (MAX_ISSUED_S + 1, 1, "issued_s: Input should be less than or equal to"),
        (1e300, 1, "issued_s: Input should be less than or equal to"),
        (-1e12, 1, "issued_s: Input should be greater than or equal to 0"),
    ],
)
def test_strangers_receipt_with_any_time_is_shown_or_refused(
    tmp_path: Path, issued_s: float, code: int, said: str
) -> None:
    file = tmp_path / "receipt.json"
    file.write_bytes(canonical_json(signed_receipt(issued_s=issued_s)[0]))
    run_main("receipt", "check", str(file)).expect(code, said)


def test_command_for_a_missing_key_says_what_to_do(tmp_path: Path) -> None:
    key = tmp_path / "key"
    run_main("receipt", "get", "http://127.0.0.1:1", "--key", str(key)).expect(2, "does not exist")
    create_key(key)
    run_main("receipt", "get", "http://127.0.0.1:1", "--key", str(key)).expect(1, "127.0.0.1")
