"""The disk fills up under a running coordinator: it reports that, and loses nothing."""

import contextlib
import resource
from pathlib import Path
from typing import Any

import pytest

from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from tests.support.data.spooled import spooled
from tests.support.drive.by_hand import ByHand, hold_in, joined_by_hand
from tests.support.drive.processes import PATIENT, RealRun, real_run

FLOAT32 = {"merge__codec": "float32"}
"""Results as large as the sizes below expect."""
FITTING_BYTES = 7
"""Bytes of a transaction that still fit when the disk is full."""


def fill_disk(run: RealRun, room_bytes: int) -> None:
    """Let no file of the coordinator grow beyond the present length of its database's log and `room_bytes` more."""
    length = (run.run_dir / "run.sqlite-wal").stat().st_size + room_bytes
    resource.prlimit(run.coordinator.process.pid, resource.RLIMIT_FSIZE, (length, resource.RLIM_INFINITY))


def make_room(run: RealRun) -> None:
    """Let the coordinator's files grow again."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(run.coordinator.process.pid, resource.RLIMIT_FSIZE, unlimited)


def bearer(hand: ByHand) -> dict[str, str]:
    return {"Authorization": f"Bearer {hand.token}"}


@pytest.mark.nightly
async def test_full_disk_holds_the_run_which_goes_on_by_itself(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {"config__init_min_clients": 3, "config__total_steps": 5} | PATIENT
    async with real_run(tmp_path, **overrides) as run, joined_by_hand(run, 1) as hand:
        for _ in range(2):
            await run.start_client()
        before = await hold_in(hand, RunState.ROUND_TRAIN, 2)
        assert (await run.http.get("/readyz")).status_code == 200

        fill_disk(run, FITTING_BYTES)
        refusal = await run.http.delete("/v1/runs/test-run/clients/me", headers=bearer(hand))
        assert (refusal.status_code, refusal.json()["type"]) == (503, "urn:epochal:problem:store-failed")
        assert refusal.json()["retry"] is True
        assert refusal.headers["retry-after"] == "1"
        ready = await run.http.get("/readyz")
        assert ready.status_code == 503
        assert "no room on the disk" in ready.text
        assert (await run.http.get("/healthz")).status_code == 200
        assert "epochal_coordinator_store_problem 1.0" in (await run.http.get("/metrics")).text
        assert "no room on the disk" in str((await run.status()).store_problem)
        assert "no room on the disk" in (await run.command("status", run.url)).out.replace("\n", " ")
        shown = (await run.http.get("/v1/runs/test-run")).json()
        assert shown["version"] == before.version, "nothing is published that could not be kept"
        assert (await run.http.get("/v1/runs/test-run/clients/me", headers=bearer(hand))).json()
        for client in run.clients:
            await run.until_logged(client, "coordinator_refuses_for_now")

        make_room(run)
        await run.until_logged(run.coordinator, "store_goes_on")
        assert (await run.status()).store_problem is None
        after = await hand.watch.next()
        assert (after.run_state, after.round) == (before.run_state, before.round)
        await hand.api.withdraw()
        report = await run.finish()
        assert report.rounds == 5
        assert [line["level"] for line in run.events(run.coordinator, "store_blocked")] == ["error"]
        for client in run.clients:
            (said,) = run.events(client, "coordinator_refuses_for_now")
            assert said["level"] == "warning"
            assert "no room on the disk" in said["reason"]


@pytest.mark.nightly
async def test_disk_that_fills_during_an_upload_loses_nothing(tmp_path: Path) -> None:
    model = {"context": 8, "embedding": 64, "hidden": 2048}  # results of 6 MiB, longer than the database's log grows
    overrides: dict[str, Any] = {"config__init_min_clients": 3, "config__total_steps": 5, "model__LLM__ngram": model}
    overrides |= FLOAT32 | PATIENT
    async with real_run(tmp_path, **overrides) as run, joined_by_hand(run, 1) as hand:
        for _ in range(2):
            await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 2)
        data, bound = await hand.result(document)
        fill_disk(run, len(data) // 4)
        await hand.api.report(bound)
        with pytest.raises(Refused) as caught:
            await hand.api.put_blob(bound.result_sha256, spooled(data))
        assert caught.value.kind == "store-failed"
        assert "a blob could not be kept" in (await run.http.get("/readyz")).text
        held = {path.name for path in (run.run_dir / "blobs").glob("??/*")}
        assert bound.result_sha256 not in held, "whole or not at all"

        make_room(run)
        await run.until_logged(run.coordinator, "store_goes_on")
        await hand.api.put_blob(bound.result_sha256, spooled(data))
        with contextlib.suppress(Refused):  # the others may have attested everything already
            await hand.attest(document)
        await hand.watch.until(lambda document: document.step > 1)
        await hand.api.withdraw()
        report = await run.finish()
        assert report.rounds == 5
        first = await run.watch.api.outcome(1)
        assert hand.client_id in [entry.client_id for entry in first.entries]


async def test_run_directory_that_cannot_be_written_refuses_to_start(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        (tmp_path / "file").write_text("no folder")
        ran = await run.command("coordinator", str(run.state_path), "--store", str(tmp_path / "file"), "--port", "0")
        assert ran.code == 1
        assert "cannot be used as a run directory" in ran.err
        assert "Traceback" not in ran.err
