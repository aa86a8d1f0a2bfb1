"""`python -m tests.support.drive.other_version RULES VERSION ARGUMENTS…`: `epochal ARGUMENTS…` as another version of
Epochal.

RULES is the version of its rules, VERSION its own.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[3]


async def start_other_version(
    rules: int, version: str, arguments: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]
) -> asyncio.subprocess.Process:
    """Start `epochal ARGUMENTS…` as another version; see `Children.start_process`."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(rules), version, *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        env=environment,
    )


def main() -> None:
    """Run the command line with another version's numbers, which no module has read yet."""
    import epochal
    from epochal.coordinator.machine import stimuli

    rules, epochal.__version__, *arguments = sys.argv[1:]
    stimuli.RULES_VERSION = int(rules)
    sys.argv = ["epochal", *arguments]
    from epochal.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
