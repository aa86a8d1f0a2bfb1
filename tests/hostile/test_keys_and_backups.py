"""The coordinator's key is lost or changed, and a run is copied while it goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import in_training, real_run

KEY = "keys/coordinator.key"


def flip_a_bit(path: Path) -> None:
    """Change a character in the middle of a key in PEM to another that may stand there."""
    data = bytearray(path.read_bytes())
    place = data.index(b"\n") + 40
    data[place] = ord("A") if data[place] != ord("A") else ord("B")
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [Path.unlink, flip_a_bit], ids=["deleted", "flipped"])
async def test_start_without_the_runs_key_is_refused_until_it_is_replaced(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with real_run(tmp_path, 1, config__total_steps=20) as run:
        (client,) = run.clients
        before = await run.until(in_training(3))
        await run.stop_coordinator()
        harm(run.run_dir / KEY)
        said = await run.refused_start()
        assert str(run.run_dir) in said
        assert "restore it from a backup" in said
        assert "--new-coordinator-key" in said
        await run.start_coordinator("--new-coordinator-key")
        run.watch.seen.clear()
        after = await run.watch.next()
        assert after.coordinator_key != before.coordinator_key
        assert after.lineage != before.lineage
        late = await run.start_client()
        await run.finish()
        assert run.events(late, "joined")
        assert len(run.events(client, "joined")) == 2


async def test_run_whose_key_is_put_back_goes_on(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, config__total_steps=12) as run:
        await run.until(in_training(2))
        await run.stop_coordinator()
        key = run.run_dir / KEY
        kept = key.read_bytes()
        key.unlink()
        await run.refused_start()
        key.write_bytes(kept)
        await run.start_coordinator()
        assert (await run.finish()).rounds == 12
