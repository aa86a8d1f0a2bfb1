"""Requests that a client must not make, over real HTTP: each is refused by name, and the run goes on."""

import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S, SessionTokens
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator_client.client_key import ClientKey
from epochal.run_manager.round_view import round_of
from epochal.state.errors import Refused
from epochal.state.messages.requests import Attestation, ChallengeRequest, FailureReport
from epochal.state.model.replica import replica_digest
from epochal.state.wire import Sha256, canonical_json, sha256_hex
from tests.support.data.spooled import spooled
from tests.support.drive.by_hand import all_ready, commitment, joined_by_hand
from tests.support.drive.processes import PATIENT, RealRun, at_round, real_run


async def refused(request: Awaitable[object]) -> Refused:
    """Return the refusal of a request that must not succeed."""
    with pytest.raises(Refused) as caught:
        await request
    return caught.value


async def post(run: RealRun, place: str, token: str | None, content: bytes) -> dict[str, Any]:
    """Return the kind and status of the problem that answers a raw POST."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    path = f"/v1/runs/{run.watch.api.run_id}{place}"
    answer = await run.http.post(path, content=content, headers=headers)
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    return {"kind": problem["type"].rpartition(":")[2], "status": answer.status_code}


async def own_key(run: RealRun) -> SigningKey:
    private_key = await open_folder_reader(run.run_dir).keys.private_key()
    assert private_key is not None
    return SigningKey(private_key)


async def test_invalid_tokens_are_unauthorized(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run, joined_by_hand(run, 1) as hand:
        own = SessionTokens(await own_key(run), "test-run")
        now_s = (await run.watch.next()).phase_started_s
        number = own.check_session(hand.token, 0.0).session
        expired = own.session_token(hand.client_id, number, now_s - 2 * SESSION_LIFETIME_S)
        foreign = SessionTokens(SigningKey(bytes(32)), "test-run").session_token(hand.client_id, number, now_s)
        another_run = SessionTokens(await own_key(run), "another").session_token(hand.client_id, number, now_s)
        stranger = own.session_token(ClientKey.from_seed(bytes([9]) * 32).client_id, 1, now_s)
        earlier = hand.token
        await hand.join()
        body = canonical_json(FailureReport(1, 0, "corrupt", "mine"))
        for token in (None, "no token", expired, foreign, another_run, stranger, earlier, hand.ticket):
            assert await post(run, "/failures", token, body) == {"kind": "unauthorized", "status": 401}
        assert (await post(run, "/failures", hand.token, body))["kind"] == "late-result"


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


async def test_body_above_the_limit_is_refused_with_and_without_a_length(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run, joined_by_hand(run, 1) as hand:
        token = hand.token
        assert await post(run, "/results", token, b" " * 200_000) == {"kind": "body-too-large", "status": 413}

        async def pieces() -> Any:
            for _ in range(200):
                yield b" " * 1000

        answer = await run.http.post(
            "/v1/runs/test-run/results", content=pieces(), headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.status_code == 413
        await run.http.get("/healthz")


@pytest.mark.nightly
async def test_bad_results_are_refused_by_name_and_the_run_finishes_without_them(tmp_path: Path) -> None:
    overrides = {
        "config__init_min_clients": 8,
        "config__total_steps": 3,
        "config__global_batch_size_start": 16,
        "config__global_batch_size_end": 16,
        **PATIENT,
    }
    async with contextlib.AsyncExitStack() as stack:
        run = await stack.enter_async_context(real_run(tmp_path, **overrides))
        hands = [await stack.enter_async_context(joined_by_hand(run, number)) for number in range(1, 7)]
        nan, shape, copier, mismatch, second, late = hands
        for _ in range(2):
            await run.start_client()
        await all_ready(hands)
        document = await nan.watch.until(at_round(1))
        assert all([await hand.assigned(document) for hand in hands])
        good, good_bound = await second.result(document)
        replica = await nan.held(document)

        data, bound = await nan.result(document, nan.difference(replica, float("nan")))
        await nan.api.report(bound)
        refusal = await refused(nan.api.put_blob(bound.result_sha256, spooled(data)))
        assert (refusal.kind, refusal.context["rule"]) == ("result-invalid", "scale")

        half = {name: values.reshape(-1)[values.size // 2 :] for name, values in shape.difference(replica).items()}
        data, bound = await shape.result(document, half)
        await shape.api.report(bound)
        refusal = await refused(shape.api.put_blob(bound.result_sha256, spooled(data)))
        assert (refusal.kind, refusal.context["rule"]) == ("result-invalid", "layout")

        await copier.api.report(commitment(round_of(document), good))
        refusal = await refused(copier.api.put_blob(good_bound.result_sha256, spooled(good)))
        assert (refusal.kind, refusal.context["rule"]) == ("result-invalid", "client_id")

        data, bound = await mismatch.result(document)
        await mismatch.api.report(bound)
        broken = bytes([data[0] ^ 1]) + data[1:]
        assert (await refused(mismatch.api.put_blob(bound.result_sha256, spooled(broken)))).kind == "blob-mismatch"
        assert (await refused(mismatch.api.put_blob(sha256_hex(broken), spooled(broken)))).kind == "not-committed"
        assert (
            await refused(mismatch.api.put_blob(bound.result_sha256, spooled(data + b"more")))
        ).kind == "blob-too-large"

        await second.api.report(good_bound)
        _, other_bound = await second.result(
            document, {n: v + np.float32(1) for n, v in second.difference(replica).items()}
        )
        assert (await refused(second.api.report(other_bound))).kind == "already-committed"
        await second.api.put_blob(good_bound.result_sha256, spooled(good))
        assert (await second.api.report(good_bound)).result_verified, "the first one may be repeated"
        assert (await refused(copier.api.put_blob(good_bound.result_sha256, spooled(good)))).kind == "result-invalid"

        await late.api.report(FailureReport(1, 0, "unavailable", "not today"))
        _, late_bound = await late.result(document)
        for hand in hands:
            if hand is not late:
                await hand.api.withdraw()
        await late.attest(document)
        await late.watch.until(lambda later: later.round not in (None, document.round))
        assert (await refused(late.api.report(late_bound))).kind == "late-result"
        digest = Sha256(replica_digest(replica))
        assert (await refused(late.api.report(Attestation(1, 0, digest, "1")))).kind == "stale-round"
        await late.api.withdraw()

        report = await run.finish()
        assert report.rounds == 3
        outcomes = [await run.watch.api.outcome(step) for step in (1, 2, 3)]
        included = {entry.client_id for outcome in outcomes for entry in outcome.entries}
        assert included.isdisjoint({hand.client_id for hand in (nan, shape, copier, mismatch, late)})
