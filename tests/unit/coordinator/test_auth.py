"""The coordinator's identity: challenges, tokens, tickets, the admin token."""

import hashlib

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coordinator.auth.identity import (
    CHALLENGE_LIFETIME_S,
    DATA_AUDIENCE,
    SESSION_LIFETIME_S,
    AdminToken,
    Identity,
)
from coordinator.store.memory import MemoryKeys
from state.errors import Refused
from state.messages import Capabilities, JoinRequest, join_message
from state.wire import client_id_of

NOW_S = 1_000_000.0
IDENTITY = Identity(bytes(range(32)), "run")
CLIENT = Ed25519PrivateKey.from_private_bytes(bytes(32))
CLIENT_KEY = CLIENT.public_key().public_bytes_raw()
CLIENT_ID = client_id_of(CLIENT_KEY)


def request(nonce: str, *, run: str = "run", signer: Ed25519PrivateKey = CLIENT) -> JoinRequest:
    signature = signer.sign(join_message(run, nonce, CLIENT_KEY.hex())).hex()
    return JoinRequest(CLIENT_KEY.hex(), nonce, signature, Capabilities())


def kind_of(request: JoinRequest, now_s: float = NOW_S) -> str:
    with pytest.raises(Refused) as refused:
        IDENTITY.check_join(request, now_s)
    return refused.value.kind


def test_join_with_a_signed_challenge_is_accepted_until_the_nonce_expires() -> None:
    signed = request(IDENTITY.challenge(CLIENT_KEY.hex(), NOW_S))
    assert IDENTITY.check_join(signed, NOW_S) == pytest.approx(NOW_S + CHALLENGE_LIFETIME_S, abs=0.01)
    assert kind_of(signed, NOW_S + CHALLENGE_LIFETIME_S + 1) == "nonce-invalid"


def test_join_signed_for_another_run_or_by_another_key_is_refused() -> None:
    nonce = IDENTITY.challenge(CLIENT_KEY.hex(), NOW_S)
    assert kind_of(request(nonce, run="other")) == "unauthorized"
    assert kind_of(request(nonce, signer=Ed25519PrivateKey.generate())) == "unauthorized"


@pytest.mark.parametrize("nonce", ["", "x", "1.2.3", "9999999999999999999.a.b", "-5.a.b", "1.é.ü"])
def test_join_with_a_made_up_nonce_is_refused(nonce: str) -> None:
    assert kind_of(request(nonce)) == "nonce-invalid"


def test_join_with_a_nonce_of_another_key_run_or_coordinator_is_refused() -> None:
    assert kind_of(request(IDENTITY.challenge("ab" * 32, NOW_S))) == "nonce-invalid"
    assert kind_of(request(Identity(bytes(range(32)), "other").challenge(CLIENT_KEY.hex(), NOW_S))) == "nonce-invalid"
    assert kind_of(request(Identity(bytes(32), "run").challenge(CLIENT_KEY.hex(), NOW_S))) == "nonce-invalid"


def test_session_token_says_whose_it_is_and_expires() -> None:
    token = IDENTITY.session_token(CLIENT_ID, 3, NOW_S)
    claims = IDENTITY.check_session(token, NOW_S)
    assert (claims.client_id, claims.session) == (CLIENT_ID, 3)
    assert IDENTITY.check_session(token, NOW_S + SESSION_LIFETIME_S - 1) == claims
    with pytest.raises(Refused, match="expired"):
        IDENTITY.check_session(token, NOW_S + SESSION_LIFETIME_S + 1)


def test_session_token_holds_after_a_restart_with_the_same_key() -> None:
    token = IDENTITY.session_token(CLIENT_ID, 1, NOW_S)
    assert Identity(bytes(range(32)), "run").check_session(token, NOW_S).client_id == CLIENT_ID


def test_session_token_of_another_kind_run_or_signer_is_refused() -> None:
    forged = jwt.encode(
        {"sub": CLIENT_ID, "sid": 1, "run": "run", "aud": "epochal-session", "exp": 2e9}, "x" * 32, "HS256"
    )
    for token in (
        IDENTITY.data_ticket(CLIENT_ID, NOW_S),
        Identity(bytes(range(32)), "other").session_token(CLIENT_ID, 1, NOW_S),
        Identity(bytes(32), "run").session_token(CLIENT_ID, 1, NOW_S),
        forged,
        "",
        "a.b.c",
    ):
        with pytest.raises(Refused) as refused:
            IDENTITY.check_session(token, NOW_S)
        assert refused.value.kind == "unauthorized"


def test_data_ticket_is_verified_with_the_public_key_alone() -> None:
    ticket = IDENTITY.data_ticket(CLIENT_ID, NOW_S)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(IDENTITY.public_key_hex))
    claims = jwt.decode(ticket, key, ["EdDSA"], audience=DATA_AUDIENCE, options={"verify_exp": False})
    assert (claims["sub"], claims["run"]) == (CLIENT_ID, "run")


async def test_admin_token_is_shown_once_and_kept_as_a_hash() -> None:
    keys = MemoryKeys()
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
    keys = MemoryKeys()
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


def test_consumed_nonce_cannot_be_spelled_another_way() -> None:
    nonce = IDENTITY.challenge(CLIENT_KEY.hex(), NOW_S)
    for other in (f"0{nonce}", f"+{nonce}", f" {nonce}", f"{nonce} ", nonce.upper().replace(".", ".0", 1)):
        assert kind_of(request(other)) == "nonce-invalid"
