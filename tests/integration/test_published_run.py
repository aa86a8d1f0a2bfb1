"""A run of real processes that is published while it goes on; work and a receipt are checked from there."""

import re
from pathlib import Path

from epochal.state.phase_names import RunState
from tests.support.drive.processes import in_phase, in_training, real_run
from tests.support.drive.verifiers import LYING_TRAINERS, VERIFIED

REPEATABLE = {name: value for name, value in VERIFIED.items() if not name.startswith("verify")}
REPEATABLE |= {"config__total_steps": 16}
RETRAIN = ("audit", "--recompute", "--retrain", "20")
_LINE = re.compile(r"  step \d+, client ([0-9a-f]{32}): excess distance [0-9.]+, tolerance 0\.3000(, NOT within it)?;")


async def test_published_run_shows_who_worked_and_whose_a_receipt_is(tmp_path: Path) -> None:
    receipt, out = str(tmp_path / "receipt.json"), str(tmp_path / "out")
    async with real_run(tmp_path / "run", config__init_min_clients=2, **REPEATABLE) as run:
        trainers = "numpy", f"{LYING_TRAINERS}:LyingTrainer"
        honest, liar = [run.client_id_of(await run.start_client(trainer=trainer)) for trainer in trainers]
        await run.until(in_training(4))
        key = str(run.folder / "client-1.key")
        (await run.command("receipt", "get", run.url, "--key", key, "--out", receipt)).expect(0, f"client {honest}")
        (await run.command("publish", run.store, out)).expect(0, "published run test-run at step")
        await run.until(in_phase(RunState.FINISHED))
        record = ("--record", "--admin-token", run.admin_token)
        (await run.command_here(*RETRAIN, run.store, *record)).expect(1, "recorded in the run's history")
        (audit,) = (await run.http.get("/v1/runs/test-run/audits")).json()["audits"]
        (await run.command_here("publish", run.store, out)).expect(0)
    found = await run.command(*RETRAIN, out)
    found.expect(1, "trained again, drawn with --seed")
    lines = {(client_id, bool(wrong)) for client_id, wrong in _LINE.findall(found.out)}
    assert lines == {(honest, False), (liar, True)}, found.out
    (await run.command_here("receipt", "check", receipt, "--run", out)).expect(0, f"of the run in {out}")
    problems = audit["report"]["problems"]
    assert problems
    assert all(f"client {liar}: excess distance" in problem for problem in problems), problems
    assert [remark for remark in audit["report"]["remarks"] if "trained again, drawn with --seed" in remark]
