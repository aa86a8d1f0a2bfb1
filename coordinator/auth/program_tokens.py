"""Tokens for programs beside clients (data servers, checkers, verifiers), made from the store of a run."""

import time
from dataclasses import replace

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.coordinator.machine.records import replay
from epochal.coordinator.store.open import open_store_reader
from epochal.state.errors import StoreFailed
from epochal.state.messages.requests import ProgramKind


async def program_token_from(store: str, kind: ProgramKind) -> str:
    """Return a new token for a program of the run in a store. A coordinator may be serving the run.

    Args:
        store: its URL.
        kind: of the program.

    Raises:
        InvalidInput: the URL is not supported, or there is no run.
        StoreFailed: the coordinator's key or the journal cannot be read.
    """
    reader = open_store_reader(store)
    private_key = await reader.keys.private_key()
    if private_key is None:
        raise StoreFailed(f"{reader.name} holds no coordinator's key")
    async for segment in reader.journal.history():
        run_id = replay(replace(segment, records=())).run.state_file.run_id
        return SessionTokens(SigningKey(private_key), run_id).program_token(kind, time.time())
    raise StoreFailed(f"{reader.name} holds no journal")
