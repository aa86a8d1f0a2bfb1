"""A receipt and a stored run: bound to each other by the chain of outcomes as of the receipt's step."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.proof.audit import audit_store
from epochal.coordinator.proof.publishing import Versions, publish
from epochal.coordinator.proof.receipt_history import check_history
from epochal.coordinator.store.published_files import FolderFiles
from epochal.coordinator_client.client_key import ClientKey
from epochal.state.errors import InvalidDocument, InvalidInput
from epochal.state.messages.receipts import Receipt
from epochal.state.wire import Sha256, canonical_json
from tests.support.drive.cli import run_main
from tests.support.drive.journaled_run import compact, compact_state, keep_in, simulated_segments
from tests.support.simulate.virtual_time import run_virtually

SHORT = {"config__epoch_time": 0.25, "config__warmup_time": 0.2, "config__max_round_train_time": 0.2}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Receipt]:
    """Return a whole run, and a receipt of a time at which it had half of its segments."""
    kept = run_virtually(simulated_segments(5, compact_state(**SHORT, run__keep_journal="all")))
    folder = tmp_path_factory.mktemp("played")
    half = replace(kept, segments=kept.segments[: len(kept.segments) // 2])

    async def keep() -> Receipt:
        await keep_in(folder / "run", kept)
        await keep_in(folder / "half", half)
        then = await audit_store(str(folder / "half"), recompute=False)
        key, member = SigningKey(kept.private_key), ClientKey.from_seed(bytes(32))
        of = "ab" * 16, key.public_key_hex, member.public_key, member.client_id
        return key.signed(
            Receipt(then.run_id, *of, 1.0, then.rounds, Sha256(then.replica_chain), 0, 1, 1, 1, 1.0, 1, 1)
        )

    return folder / "run", asyncio.run(keep())


async def test_receipt_of_an_earlier_step_is_of_the_run_and_of_its_publication(
    played: tuple[Path, Receipt], tmp_path: Path
) -> None:
    run_dir, receipt = played
    now = await audit_store(str(run_dir), recompute=False)
    assert 0 < receipt.step < now.rounds
    assert receipt.outcome_chain != now.replica_chain
    await publish(str(run_dir), FolderFiles(tmp_path / "out"), Versions.here("0.1.0"), lambda _: None)
    for place in (run_dir, tmp_path / "out"):
        await check_history(str(place), receipt)


async def test_receipt_of_another_history_is_found_out(played: tuple[Path, Receipt]) -> None:
    run_dir, receipt = played
    now = await audit_store(str(run_dir), recompute=False)
    for changed, said in (
        ({"outcome_chain": "ab" * 32}, f"as of step {receipt.step} its chain is {receipt.outcome_chain}"),
        ({"outcome_chain": now.replica_chain}, f"as of step {receipt.step} its chain is {receipt.outcome_chain}"),
        ({"coordinator_key": "ab" * 32}, f"as of step {receipt.step} its coordinator had another key"),
        ({"run_id": "other"}, "the receipt is of run other"),
    ):
        with pytest.raises(InvalidDocument, match=said):
            await check_history(str(run_dir), replace(receipt, **changed))  # type: ignore[arg-type]


async def test_step_that_the_journal_does_not_show_decides_nothing(
    played: tuple[Path, Receipt], tmp_path: Path
) -> None:
    run_dir, receipt = played
    with pytest.raises(InvalidInput, match="allowed as --run: a copy that was published later"):
        await check_history(str(run_dir), replace(receipt, step=1000))
    compacted = Path(shutil.copytree(run_dir, tmp_path / "run"))
    await compact(compacted)
    now = await audit_store(str(compacted), recompute=False)
    last = replace(receipt, step=now.rounds, outcome_chain=Sha256(now.replica_chain))
    await check_history(str(compacted), last)
    with pytest.raises(InvalidInput, match="allowed as --run: one from before it was compacted"):
        await check_history(str(compacted), replace(receipt, step=1))


def test_command_binds_a_receipt_to_a_run(played: tuple[Path, Receipt], tmp_path: Path) -> None:
    run_dir, receipt = played
    file = tmp_path / "receipt.json"
    file.write_bytes(canonical_json(receipt))
    run_main("receipt", "check", str(file), "--run", str(run_dir)).expect(0, "which had this chain and this key")
    run_main("receipt", "check", str(file), "--run", str(tmp_path)).expect(2, "holds no run")
    half = str(run_dir.parent / "half")
    run_main("receipt", "check", str(file), "--run", half).expect(0, "which had this chain")
