"""`epochal verifier` processes of a real run, and what they print."""

import re
from collections.abc import Collection
from typing import Any

from epochal.tools.testnet.child_processes import Child
from tests.support.drive.processes import RealRun

LYING_TRAINERS = "tests.support.models.lying_trainer"
CLASS = "float32/cpu"
VERIFIED: dict[str, Any] = {
    "config__total_steps": 10_000,
    "config__global_batch_size_start": 6,
    "config__global_batch_size_end": 6,
    "merge__codec": "int4",
    "merge__inner_state": "reset",
    "merge__local_steps": 3,
    "verify__percent": 100,
}
_LINE = re.compile(r"result of ([0-9a-f]{32}), step (\d+): excess distance ([0-9.]+), .*\(float32/cpu by float32/cpu")


async def start_verifier(run: RealRun, name: str, *arguments: str) -> Child:
    """Start a verifier with a token of its own."""
    token = await run.command_here("token", "verifier", run.store)
    token.expect(0)
    command = ("verifier", run.url, "--trainer", "numpy", "--token", token.out.strip(), *arguments)
    return await run.children.start(name, *command)


async def distances(run: RealRun, verifier: Child, count: int, of: Collection[str] = ()) -> dict[str, list[float]]:
    """Return the next excess distances that a verifier prints, by client: so many at least, and one of each `of`."""
    found: dict[str, list[float]] = {}
    while sum(map(len, found.values())) < count or not found.keys() >= set(of):
        line = _LINE.search(await run.line_of(verifier, "excess distance"))
        assert line is not None, verifier.log_tail()
        found.setdefault(line[1], []).append(float(line[3]))
    return found
