"""`epochal export` on real runs: from a store and from a coordinator's address, once and while the run goes on."""

import json
from pathlib import Path

from epochal.state.model.replica import Replica
from epochal.tools.export.destinations import step_name
from epochal.trainers.sources.local_model import local_source
from tests.support.data.stored_replica import newest_replica
from tests.support.drive.processes import real_run


def is_export_of(folder: Path, replica: Replica) -> bool:
    """Whether the folder holds exactly this replica's parameters."""
    shapes = {name: values.shape for name, values in replica.parameters.items()}
    found = dict(local_source(folder).tensors(shapes))
    return all((found[name] == values).all() for name, values in replica.parameters.items())


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_follow_exports_a_run_to_its_end_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "exports"
    async with real_run(tmp_path / "run", config__total_steps=4, config__epoch_time=65) as run:
        await run.start_client()
        follow = ("--out", str(out), "--follow", "--keep", "1", "--dtype", "bfloat16")
        ran = await run.command_here("export", run.url, *follow, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0, "test-run, replica 4")
        await run.finish()
    assert names_of(out) == [step_name(4)]
    assert json.loads((out / step_name(4) / "config.json").read_text())["dtype"] == "bfloat16"
    again = await run.command_here("export", str(run.run_dir), "--out", str(tmp_path / "final"), "--follow")
    again.expect(0, "test-run, replica 4")
    assert is_export_of(tmp_path / "final" / step_name(4), await newest_replica(run.run_dir))
