"""The nonces of joins, and the signatures over them."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from epochal.coordinator.auth.nonces import NONCE_LIFETIME_S, JoinNonces
from epochal.coordinator.auth.signing_key import SigningKey
from epochal.state.errors import Refused
from epochal.state.messages.requests import Capabilities, JoinRequest, join_message
from epochal.state.wire import sha256_hex

NOW_S = 1_000_000.0
COORDINATOR = SigningKey(bytes(range(32)))
NONCES = JoinNonces(COORDINATOR, "run")
HOST = "run.example.org"
CLIENT = Ed25519PrivateKey.from_private_bytes(bytes(32))
CLIENT_KEY = CLIENT.public_key().public_bytes_raw()


def request(
    nonce: str,
    *,
    run: str = "run",
    signer: Ed25519PrivateKey = CLIENT,
    coordinator: str = COORDINATOR.public_key_hex,
    host: str = HOST,
) -> JoinRequest:
    signature = signer.sign(join_message(run, nonce, CLIENT_KEY.hex(), coordinator, host)).hex()
    return JoinRequest(CLIENT_KEY.hex(), nonce, signature, HOST, Capabilities())


def kind_of(request: JoinRequest, now_s: float = NOW_S) -> str:
    with pytest.raises(Refused) as refused:
        NONCES.check_join(request, now_s)
    return refused.value.kind


def test_join_with_a_signed_challenge_is_accepted_until_the_nonce_expires() -> None:
    signed = request(NONCES.make(CLIENT_KEY.hex(), NOW_S))
    assert NONCES.check_join(signed, NOW_S) == pytest.approx(NOW_S + NONCE_LIFETIME_S, abs=0.01)
    assert kind_of(signed, NOW_S + NONCE_LIFETIME_S + 1) == "nonce-invalid"


def test_join_signed_for_another_run_or_by_another_key_is_refused() -> None:
    nonce = NONCES.make(CLIENT_KEY.hex(), NOW_S)
    assert kind_of(request(nonce, run="other")) == "unauthorized"
    assert kind_of(request(nonce, signer=Ed25519PrivateKey.generate())) == "unauthorized"


def test_join_signed_for_another_coordinator_or_host_is_refused() -> None:
    nonce = NONCES.make(CLIENT_KEY.hex(), NOW_S)
    assert kind_of(request(nonce, coordinator="ab" * 32)) == "unauthorized"
    assert kind_of(request(nonce, host="stranger.example")) == "unauthorized"


def test_signed_bytes_are_those_of_the_documentation() -> None:
    nonce = "1000060000.0011223344556677.00112233445566778899aabbccddeeff"
    message = join_message("my-run", nonce, CLIENT_KEY.hex(), COORDINATOR.public_key_hex, HOST)
    page = Path("docs/rest-api.md").read_text(encoding="utf-8")
    for value in (nonce, CLIENT_KEY.hex(), COORDINATOR.public_key_hex, HOST, sha256_hex(message)):
        assert value in page
    assert CLIENT.sign(message).hex() in page
    assert message.startswith(b"\x00\x00\x00\x0fepochal/join/v1\x00\x00\x00\x06my-run\x00\x00\x00\x3c1000060000.")


def test_signed_values_cannot_run_into_each_other() -> None:
    assert join_message("a", "bc", "k", "c", "h") != join_message("ab", "c", "k", "c", "h")


@pytest.mark.parametrize("nonce", ["", "x", "1.2.3", "9999999999999999999.a.b", "-5.a.b", "1.é.ü"])
def test_join_with_a_made_up_nonce_is_refused(nonce: str) -> None:
    assert kind_of(request(nonce)) == "nonce-invalid"


def test_join_with_a_nonce_of_another_key_run_or_coordinator_is_refused() -> None:
    for nonces, key in (
        (NONCES, "ab" * 32),
        (JoinNonces(SigningKey(bytes(range(32))), "other"), CLIENT_KEY.hex()),
        (JoinNonces(SigningKey(bytes(32)), "run"), CLIENT_KEY.hex()),
    ):
        assert kind_of(request(nonces.make(key, NOW_S))) == "nonce-invalid"


def test_consumed_nonce_cannot_be_spelled_another_way() -> None:
    nonce = NONCES.make(CLIENT_KEY.hex(), NOW_S)
    for other in (f"0{nonce}", f"+{nonce}", f" {nonce}", f"{nonce} ", nonce.upper().replace(".", ".0", 1)):
        assert kind_of(request(other)) == "nonce-invalid"
