"""Session tokens and data tickets."""

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from coordinator.auth.signing_key import SigningKey
from coordinator.auth.tokens import SESSION_LIFETIME_S, SessionTokens
from state.errors import Refused
from state.messages import DATA_TICKET_AUDIENCE
from state.wire import client_id_of

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
