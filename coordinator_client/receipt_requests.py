"""Getting the receipt of a key from a coordinator: also after its owner has left the run."""

from epochal.coordinator_client.client_key import ClientKey
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.known_coordinators import KnownRun, known_beside
from epochal.runtime.http.allowed_hosts import host_in
from epochal.state.errors import InvalidDocument
from epochal.state.messages.receipts import Receipt, ReceiptRequest, check_receipt, receipt_message
from epochal.state.messages.requests import ChallengeRequest


async def get_receipt(api: CoordinatorClient, key: ClientKey) -> Receipt:
    """Return a key's receipt, checked.

    Raises:
        WrongCoordinator: the coordinator has another key than the one that the client knows.
        Refused: `not-found` if the run knows nothing of the key.
        InvalidDocument: it is not signed by the coordinator, or of another key or run.
    """
    challenge = await api.challenge(ChallengeRequest(key.public_key))
    path = None if key.path is None else known_beside(key.path)
    KnownRun(path, api.address, api.run_id).check(challenge.coordinator_key)
    host = host_in(api.address) or api.address
    message = receipt_message(api.run_id, challenge.nonce, key.public_key, challenge.coordinator_key, host)
    found = await api.receipt(ReceiptRequest(key.public_key, challenge.nonce, key.sign(message), host))
    check_receipt(found, challenge.coordinator_key)
    if (found.run_id, found.public_key) != (api.run_id, key.public_key):
        raise InvalidDocument(f"the receipt is of key {found.public_key} in run {found.run_id!r}")
    return found
