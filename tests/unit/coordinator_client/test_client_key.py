"""`coordinator_client/client_key.py`: a client's key and its file."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epochal.coordinator_client.client_key import load_key, load_or_create_key
from epochal.state.errors import InvalidInput
from epochal.state.messages.requests import join_message
from tests.support.simulate.simulated_client import key_of


def test_join_signs_what_the_coordinator_asks_for() -> None:
    key = key_of(7)
    message = join_message("test-run", "nonce", key.public_key, "ab" * 32, "localhost")
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public_key)).verify(bytes.fromhex(key.sign(message)), message)


def test_key_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "client.pem"
    assert load_or_create_key(path).client_id == load_or_create_key(path).client_id == load_key(path).client_id


def test_missing_key_file_is_not_made_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"typo\.key does not exist; check the path, or make a key there"):
        load_key(tmp_path / "typo.key")
    assert not list(tmp_path.iterdir())


def test_folder_of_a_new_key_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no folder"):
        load_or_create_key(tmp_path / "typo" / "client.pem")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["junk", "folder"])
def test_key_file_that_holds_no_key_is_the_users_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk").write_bytes(b"not a key")
    with pytest.raises(InvalidInput, match=name):
        load_or_create_key(tmp_path / name)
