"""Tokens for a data server, for a checker and for a verifier, made from the store of a run."""

import time
from dataclasses import replace

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.coordinator.machine.records import replay
from epochal.coordinator.store.open import open_store_reader
from epochal.state.errors import StoreFailed


async def data_server_token_from(store: str) -> str:
    """Return a new token for a data server of the run in a store. A coordinator may be serving the run.

    Args:
        store: its URL.

    Raises:
        InvalidInput: the URL is not supported, or there is no run.
        StoreFailed: the coordinator's key or the journal cannot be read.
    """
    return (await _tokens_of(store)).data_server_token(time.time())


async def checker_token_from(store: str) -> str:
    """Return a new token for a checker of the run in a store. Takes and raises the same."""
    return (await _tokens_of(store)).checker_token(time.time())


async def verifier_token_from(store: str) -> str:
    """Return a new token for a verifier of the run in a store. Takes and raises the same."""
    return (await _tokens_of(store)).verifier_token(time.time())


async def _tokens_of(store: str) -> SessionTokens:
    reader = open_store_reader(store)
    private_key = await reader.keys.private_key()
    if private_key is None:
        raise StoreFailed(f"{reader.name} holds no coordinator's key")
    async for segment in reader.journal.history():
        run_id = replay(replace(segment, records=())).run.state_file.run_id
        return SessionTokens(SigningKey(private_key), run_id)
    raise StoreFailed(f"{reader.name} holds no journal")
