"""Receipts of members' contributions, from the projection: present and former members alike."""

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.run import Run
from epochal.state.errors import Refused
from epochal.state.messages.receipts import Receipt
from epochal.state.refusals import Refusal
from epochal.state.wire import client_id_of


def receipt_of(run: Run, history: Projection, public_key: str, now_s: float) -> Receipt:
    """Return a key's receipt, not signed yet. Raise `Refused` (`not-found`) if nothing is known of the key.

    Args:
        run: at the present time.
        history: of the run.
        public_key: raw Ed25519 public key, hex.
        now_s: on the coordinator's clock.
    """
    client_id, compacted = client_id_of(bytes.fromhex(public_key)), run.identity.compacted
    known = history.book.get(client_id)
    if known is None:
        raise Refused(Refusal.NOT_FOUND, f"client {client_id} was never a member of this run, or left long ago")
    return Receipt(
        run_id=run.state_file.run_id,
        lineage=run.identity.lineage,
        coordinator_key=run.identity.coordinator_key,
        public_key=public_key,
        client_id=client_id,
        issued_s=round(now_s, 3),
        step=history.outcome_step,
        outcome_chain=history.outcome_chain,
        compacted_segments=0 if compacted is None else compacted.segment_count,
        rounds=known.applied,
        batches=known.batches,
        tokens=known.tokens,
        weighed_tokens=known.weighed_tokens,
        first_step=known.first_step,
        last_step=known.last_step,
    )
