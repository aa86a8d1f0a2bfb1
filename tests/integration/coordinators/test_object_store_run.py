"""A real run whose blobs move from the disk to a bucket, with a checker beside it, by real processes."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.auth.program_tokens import program_token_from
from epochal.coordinator.machine.records import RecordBody
from epochal.coordinator.machine.stimuli import STIMULI, ResultReceived
from epochal.coordinator.proof.audit import audit_store
from epochal.coordinator.proof.backup import back_up
from epochal.coordinator.store.open import open_store_reader
from epochal.state.wire import parse_document
from tests.support.bounds import BOUND_S
from tests.support.data.object_blobs import s3_lines
from tests.support.drive.processes import RealRun, in_training, real_run
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_door import DoorRequest, S3Door, s3_door
from tests.support.servers.s3_server import AWS, BUCKET, empty_bucket, s3_server

MORE_STEPS = 20
"""Steps after the last one that the test has seen: more than the run takes until it is stopped."""
LASTS: dict[str, Any] = {
    "config__max_round_train_time": 8,
    "config__round_witness_time": 2,
    "config__total_steps": 100_000,
    "config__init_min_clients": 2,
    "config__min_clients": 2,
    "blobs__part_bytes": 2**16,
    "model__LLM__ngram": {"context": 8, "embedding": 64, "hidden": 256},
}
"""This run's checkpoints have several parts, and its updates lie in the bucket: the coordinator serves small ones."""


class Overwriting:
    """A fault: the first part of an update that a client reads in the bucket is overwritten just before, by zeros."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket
        self._data = b""
        self.spoiled = ""

    def __call__(self, request: DoorRequest) -> HttpReply | None:
        import obstore

        if request.is_signed_url and request.method == "GET" and not self.spoiled:
            self.spoiled = request.path.removeprefix(f"/{BUCKET}/")
            self._data = bytes(obstore.get(self._bucket, self.spoiled).bytes())
            obstore.put(self._bucket, self.spoiled, bytes(len(self._data)))
        return None

    def mend(self) -> None:
        """Put the bytes back, as an operator does from a copy."""
        import obstore

        obstore.put(self._bucket, self.spoiled, self._data)


@pytest.fixture
def overwriting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3Door, Overwriting]]:
    """A door before an empty bucket, and a fault for it; the processes' environment has the credentials."""
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as url:
        bucket = empty_bucket(url)
        with s3_door(url) as door:
            door.fault = Overwriting(bucket)
            yield door, door.fault


async def restarted(run: RealRun, **overrides: Any) -> None:
    await run.stop_coordinator()
    run.write_state(**(LASTS | overrides))
    await run.start_coordinator()


async def checkers_of(run: RealRun) -> set[str | None]:
    """Who vouched for the run's results; None for the coordinator."""
    found = set()
    async for segment in open_store_reader(str(run.run_dir)).journal.history():
        for record in segment.records:
            for stamped in STIMULI.validate_json(parse_document(RecordBody, record.body).stimuli):
                if isinstance(stamped.stimulus, ResultReceived) and stamped.stimulus.verdict is not None:
                    found.add(stamped.stimulus.verdict.checker)
    return found


@pytest.mark.nightly
async def test_run_moves_to_a_bucket_with_a_checker_that_checks(
    tmp_path: Path, overwriting: tuple[S3Door, Overwriting]
) -> None:
    door, fault = overwriting
    async with real_run(tmp_path, **LASTS) as run:
        for _ in range(2):
            await run.start_client()
        await run.until(in_training(3))
        await restarted(run, blobs__store=s3_lines(door.url))
        await run.until(in_training(run.watch.seen[-1].step + 2))
        lost = await run.until_logged(run.coordinator, "blob_lost")
        assert "was overwritten: its bytes hash to" in lost["reason"]
        assert fault.spoiled.endswith(lost["sha256"])
        fault.mend()
        token = await program_token_from(str(run.run_dir), "checker")
        checker = await run.children.start("checker", "checker", run.url, environment={"EPOCHAL_CHECKER_TOKEN": token})
        assert "step" in await run.line_of(checker, "result of")
        reached = await run.until(in_training(run.watch.seen[-1].step + 3))
        await back_up(str(run.run_dir), tmp_path / "backup", lambda _: None)
        verified = await audit_store(str(tmp_path / "backup"), recompute=False)
        assert (verified.problems, verified.blobs > 0) == ((), True)
        last_step = reached.step + MORE_STEPS
        await restarted(run, config__total_steps=last_step, blobs__store=s3_lines(door.url))
        report = await run.finish()
        assert (report.rounds, report.unapplied) == (last_step, 0)
        vouched = await checkers_of(run)
        assert None in vouched
        assert len(vouched) == 2


@pytest.fixture
def bucket_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server with an empty bucket; the processes' environment has the credentials."""
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as url:
        empty_bucket(url)
        yield url


@pytest.mark.nightly
async def test_checkers_make_the_updates_though_one_is_killed(tmp_path: Path, bucket_url: str) -> None:
    steps = 30
    async with real_run(tmp_path, config__total_steps=steps, blobs__store=s3_lines(bucket_url)) as run:
        token = await program_token_from(str(run.run_dir), "checker")
        environment = {"EPOCHAL_CHECKER_TOKEN": token}
        first, second = [
            await run.children.start(name, "checker", run.url, "--spool", str(tmp_path), environment=environment)
            for name in ("one", "two")
        ]
        for checker in (first, second):
            await run.line_of(checker, "checking results")
        for _ in range(2):
            await run.start_client()
        await run.until(in_training(4))
        first.kill()
        assert await first.wait(BOUND_S) == -signal.SIGKILL
        assert "the mean of" in await run.line_of(second, "update of step")
        report = await run.finish()
        assert (report.rounds, report.unapplied) == (steps, 0)
