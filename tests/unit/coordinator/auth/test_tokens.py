"""Session tokens and data tickets."""

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import PROGRAM_LIFETIMES_S, SESSION_LIFETIME_S, SessionTokens
from epochal.state.errors import Refused
from epochal.state.messages.requests import DATA_TICKET_AUDIENCE
from epochal.state.wire import client_id_of

NOW_S = 1_000_000.0
KEY = SigningKey(bytes(range(32)))
TOKENS = SessionTokens(KEY, "run")
CLIENT_ID = client_id_of(bytes(32))


def test_session_token_says_whose_it_is_and_expires() -> None:
    token = TOKENS.session_token(CLIENT_ID, 3, NOW_S)
    claims = TOKENS.check_session(token, NOW_S)
    assert (claims.client_id, claims.session) == (CLIENT_ID, 3)
    assert TOKENS.check_session(token, NOW_S + SESSION_LIFETIME_S - 1) == claims
    with pytest.raises(Refused, match="expired"):
        TOKENS.check_session(token, NOW_S + SESSION_LIFETIME_S + 1)


def test_session_token_holds_after_a_restart_with_the_same_key() -> None:
    token = TOKENS.session_token(CLIENT_ID, 1, NOW_S)
    assert SessionTokens(SigningKey(bytes(range(32))), "run").check_session(token, NOW_S).client_id == CLIENT_ID


def test_session_token_of_another_kind_run_or_signer_is_refused() -> None:
    claims = {"sub": CLIENT_ID, "sid": 1, "run": "run", "aud": "epochal-session", "exp": 2e9}
    for token in (
        TOKENS.data_ticket(CLIENT_ID, NOW_S),
        SessionTokens(KEY, "other").session_token(CLIENT_ID, 1, NOW_S),
        SessionTokens(SigningKey(bytes(32)), "run").session_token(CLIENT_ID, 1, NOW_S),
        jwt.encode(claims, "x" * 32, "HS256"),
        *("", "a.b.c"),
    ):
        with pytest.raises(Refused) as refused:
            TOKENS.check_session(token, NOW_S)
        assert refused.value.kind == "unauthorized"


def test_data_ticket_is_verified_with_the_public_key_alone() -> None:
    ticket = TOKENS.data_ticket(CLIENT_ID, NOW_S)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY.public_key_hex))
    claims = jwt.decode(ticket, key, ["EdDSA"], audience=DATA_TICKET_AUDIENCE, options={"verify_exp": False})
    assert (claims["sub"], claims["run"]) == (CLIENT_ID, "run")


def test_data_server_token_holds_for_its_run_and_is_no_session() -> None:
    tokens = SessionTokens(KEY, "run")
    token, another = tokens.program_token("data-server", NOW_S), tokens.program_token("data-server", NOW_S)
    ids = {
        tokens.program_of("data-server", token, NOW_S),
        SessionTokens(KEY, "run").program_of("data-server", token, NOW_S),
    }
    assert len(ids) == 1
    assert None not in ids
    assert tokens.program_of("data-server", another, NOW_S) not in {None, *ids}
    with pytest.raises(Refused, match="not one of this coordinator's"):
        tokens.check_session(token, NOW_S)


def test_data_server_token_of_another_kind_run_signer_or_time_is_none() -> None:
    tokens = SessionTokens(KEY, "run")
    session = tokens.session_token(CLIENT_ID, 1, NOW_S)
    tokens.check_session(session, NOW_S)
    for token in (
        session,
        tokens.data_ticket(CLIENT_ID, NOW_S),
        tokens.program_token("checker", NOW_S),
        SessionTokens(KEY, "other").program_token("data-server", NOW_S),
        SessionTokens(SigningKey(bytes(32)), "run").program_token("data-server", NOW_S),
        tokens.program_token("data-server", NOW_S - PROGRAM_LIFETIMES_S["data-server"]),
        *("", "a.b.c"),
    ):
        assert tokens.program_of("data-server", token, NOW_S) is None
