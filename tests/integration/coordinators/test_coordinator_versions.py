"""Coordinators of several versions of Epochal over one database, as in a rolling upgrade."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from epochal import __version__
from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.tools.testnet.child_processes import Child, Children
from tests.support.bounds import BOUND_S
from tests.support.drive.other_version import start_other_version
from tests.support.drive.processes import in_training
from tests.support.drive.replicas import Replicas, replicated_run
from tests.support.servers.postgres_server import PostgresServer, postgres_server

NEWER = "99.0.0"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@contextlib.asynccontextmanager
async def other_version(replicas: Replicas, rules: int, version: str) -> AsyncIterator[Child]:
    """Yield a coordinator of another version that is starting."""
    run = replicas.run
    async with Children(run.folder / version, start_process=partial(start_other_version, rules, version)) as children:
        place = ("--store", run.store, "--blobs", str(replicas.blobs), "--port", "0")
        yield await children.start(version, "coordinator", str(run.state_path), *place)


async def coordinators(replicas: Replicas) -> list[dict[str, object]]:
    """Return those that `epochal runs` lists."""
    ran = await replicas.run.command("runs", replicas.run.store, "--json")
    (run,) = json.loads(ran.out)
    found: list[dict[str, object]] = run["coordinators"]
    return found


@pytest.mark.nightly
async def test_versions_with_the_same_rules_serve_one_run(tmp_path: Path, server: PostgresServer) -> None:
    async with replicated_run(tmp_path, server, 1, config__total_steps=12) as replicas:
        run = replicas.run
        await run.start_client()
        await run.until(in_training(1))
        async with other_version(replicas, RULES_VERSION, NEWER) as newer:
            await run.line_of(newer, "listening on")
            listed = await coordinators(replicas)
            assert {entry["program"]: entry["rules"] for entry in listed} == {
                __version__: RULES_VERSION,
                NEWER: RULES_VERSION,
            }
            assert [entry["is_ticking"] for entry in listed].count(True) == 1
            assert (await run.finish()).rounds == 12


@pytest.mark.parametrize(
    ("rules", "remedy"),
    [
        (RULES_VERSION + 1, "let coordinators of the version that began the run finish it"),
        (RULES_VERSION - 1, "start a version of Epochal that is as new as the one that wrote it"),
    ],
    ids=["newer", "older"],
)
@pytest.mark.nightly
async def test_other_rules_are_refused_beside_those_of_the_run(
    tmp_path: Path, server: PostgresServer, rules: int, remedy: str
) -> None:
    async with replicated_run(tmp_path, server, 1) as replicas, other_version(replicas, rules, "0.0.1") as other:
        assert await other.wait(BOUND_S) == 1
        assert remedy in other.log_tail()
        assert [entry["program"] for entry in await coordinators(replicas)] == [__version__]
