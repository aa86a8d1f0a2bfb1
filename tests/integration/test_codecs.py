"""A run of each codec: what clients send is as small as specified, and every replica is the recomputed one."""

from pathlib import Path
from typing import Any

import pytest

from state.results import METADATA_BOUND_BYTES
from tests.support.processes import in_training, real_run

STEPS = 3
SPARSE: dict[str, Any] = {
    "merge__codec": "sparse",
    "merge__error_feedback": True,
    "merge__outer_lr": 1.0,
    "merge__outer_momentum": 0.0,
}
CODECS: dict[str, tuple[dict[str, Any], float]] = {
    "int8": ({"merge__codec": "int8"}, 1.02),
    "int4 with error feedback": ({"merge__codec": "int4", "merge__error_feedback": True}, 0.52),
    "sparse": (SPARSE, 0.04),
    "sparse over senders": (SPARSE | {"merge__mean": "senders", "merge__sparse_keep": 32}, 0.02),
}
"""Settings, and bytes a parameter at most, beside those of the header and of small tensors."""
VALUE_BYTES = 4


@pytest.mark.parametrize("name", CODECS)
async def test_run_of_a_codec_ends_with_equal_replicas_and_a_clean_audit(name: str, tmp_path: Path) -> None:
    overrides, rate = CODECS[name]
    async with real_run(tmp_path, config__total_steps=STEPS, config__init_min_clients=2, **overrides) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (STEPS, 0, 0)
        assert report.recomputed_steps == STEPS + 1
        blobs = [path.stat().st_size for path in (run.run_dir / "blobs").rglob("*") if path.is_file()]
    has_momentum = overrides.get("merge__outer_momentum") != 0
    parameters = max(blobs) / VALUE_BYTES / (1 + has_momentum)
    results = [size for size in blobs if size < VALUE_BYTES * parameters * 0.9]
    assert len(results) == 2 * STEPS
    assert max(results) <= rate * parameters + METADATA_BOUND_BYTES


async def test_killed_client_goes_on_with_what_its_codec_left_out(tmp_path: Path) -> None:
    both = {"config__total_steps": 6, "config__init_min_clients": 2, "config__min_clients": 2}
    async with real_run(tmp_path, **both, **SPARSE) as run:
        await run.start_client()
        killed = await run.start_client()
        await run.until(in_training(3))
        killed.kill()
        again = await run.start_client("--key", str(run.folder / f"{killed.name}.key"))
        report = await run.finish(without=(killed,))
        assert (report.rounds, report.quarantined, report.unapplied) == (6, 0, 0)
        (resumed,) = run.events(again, "feedback_resumed")
        assert resumed["step"] >= 1
        assert [path.name for path in run.folder.glob("*.feedback*") if killed.name in path.name]


async def test_client_without_a_key_file_leaves_nothing_behind(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with real_run(tmp_path / "run", config__total_steps=STEPS, config__init_min_clients=1, **SPARSE) as run:
        command = ("client", run.url, "--trainer", "numpy", "--spool", str(spool))
        run.clients.append(await run.children.start("client-without-key", *command))
        await run.finish()
    assert list(spool.iterdir()) == []
