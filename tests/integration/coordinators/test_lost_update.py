"""A run whose newest update is lost, or damaged, while its coordinator is away."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.drive.processes import in_training, real_run

LARGE_MODEL = {"context": 8, "embedding": 48, "hidden": 320}
"""Its updates have 100 KB: they are files of their own."""


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [Path.unlink, _damage], ids=["lost", "damaged"])
async def test_update_is_made_again_of_the_results(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Clients need not make it: they would wait for longer than the test."""
    async with real_run(tmp_path, 2, config__total_steps=10_000, model__LLM__ngram=LARGE_MODEL) as run:
        update = (await run.until(lambda document: document.step > 3 and document.update is not None)).update
        assert update is not None
        await run.kill_coordinator()
        blob = run.run_dir / "blobs" / update.blob_sha256[:2] / update.blob_sha256
        spoil(blob)
        await run.start_coordinator()
        told = await run.until_logged(run.coordinator, "update_made_again")
        await run.until(in_training(update.step + 3))
        assert told["step"] == update.step
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == update.blob_sha256
        await run.stop_coordinator()
        await run.prove()
