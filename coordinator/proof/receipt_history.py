"""Whether a member's receipt is of a stored run: its chain of outcomes is the one that the run had as of that step."""

from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Kept, replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.counted_replay import REPLAYING, replay_records
from epochal.coordinator.proof.journal_proof import parse_proof
from epochal.coordinator.proof.ledger import Ledger
from epochal.coordinator.store.open import open_store_reader
from epochal.runtime.long_work import long_work
from epochal.state.errors import InvalidDocument, InvalidInput, StoreFailed
from epochal.state.messages.receipts import Receipt


async def check_history(url: str, receipt: Receipt) -> None:
    """Raise `InvalidDocument` unless the run in a store had a receipt's chain, and its key, as of the receipt's step.

    Args:
        url: the store, which may be a published folder.
        receipt: whole (`check_receipt`).

    Raises:
        InvalidInput: there is no run, or its journal does not show that step.
        StoreFailed: the journal cannot be read, or does not replay.
    """
    store = open_store_reader(url)
    stored = max(await store.journal.proofs(), key=lambda proof: proof.segment_count, default=None)
    ledger: Ledger | None = None
    run_id, first_step = "", 0
    found: set[tuple[str, str]] = set()

    def watch(run: Run, instructions: tuple[Instruction, ...], _kept: Kept | None) -> None:
        assert ledger is not None, "the first segment was opened"
        ledger.take(instructions)
        if ledger.last_step == receipt.step:
            found.add((ledger.replica_chain, run.identity.coordinator_key))

    async with store.place.copying():
        with long_work(REPLAYING, None, "records") as work:
            async for segment in store.journal.history():
                opening = replay(Segment(segment.number, segment.snapshot, ()))
                if ledger is None:
                    ledger = Ledger.begin(opening.run) if stored is None else parse_proof(stored).ledger
                    run_id, first_step = opening.run.state_file.run_id, ledger.last_step
                    watch(opening.run, (), None)
                replay_records(opening, segment.records, work, watch)
    if ledger is None:
        raise StoreFailed(f"{store.name} holds no journal")
    if run_id != receipt.run_id:
        raise InvalidDocument(f"the receipt is of run {receipt.run_id}; {store.name} holds run {run_id}")
    if not found:
        allowed = "a copy that was published later" if receipt.step > first_step else "one from before it was compacted"
        raise InvalidInput(
            f"the receipt is as of step {receipt.step}; the journal of {store.name} shows steps {first_step} to "
            f"{ledger.last_step}; allowed as --run: {allowed}"
        )
    if (receipt.outcome_chain, receipt.coordinator_key) not in found:
        chains = " or ".join(sorted({chain for chain, _ in found}))
        is_other = receipt.outcome_chain not in {chain for chain, _ in found}
        wrong = f"its chain is {chains}" if is_other else "its coordinator had another key"
        raise InvalidDocument(f"the receipt is not of the run in {store.name}: as of step {receipt.step} {wrong}")
