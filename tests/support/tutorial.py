"""A tutorial's page, executed: files are written as the page shows them, commands run in their machine's folder.

A block follows a comment that says where it belongs, `<!-- machine A -->`, and maybe what is special about it:

- `file NAME`: the block is the file's content;
- `goes on until "TEXT"`: the command keeps running while the page goes on, and has printed this text by then;
- `goes on`: the same, without a text;
- `after the clients`: the commands above that go on without a text must end first, with 0;
- `gets NAME…`, without a block: these files are copied there from the other machine.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.bounds import BOUND_S

STEP = re.compile(r"^<!-- machine ([AB])(?:, ([^\n]*))? -->\n(?:```\w+\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```\w+$", re.MULTILINE)

COMMAND_BOUND_S = 3 * BOUND_S
"""Seconds for a command to end, which may be a client that trains from a run's beginning to its end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a page: a machine, what is special about it, and the block."""

    machine: str
    remark: str
    text: str


def steps_of(page: Path, replaced: Mapping[str, str]) -> list[Step]:
    """Return a page's steps, with some texts replaced; fail if a block belongs to none."""
    text = page.read_text(encoding="utf-8")
    for before, after in replaced.items():
        assert before in text, f"{page} does not say {before}"
        text = text.replace(before, after)
    found = [Step(machine, remark, block) for machine, remark, block in STEP.findall(text)]
    assert len([step for step in found if step.text]) == len(FENCE.findall(text)), "a block belongs to no machine"
    return found


@dataclass
class Tutorial:
    """A page that is being executed, in a folder for each machine. Leaving the context ends what it started."""

    folder: Path
    printed: list[str] = field(default_factory=list)
    lasting: dict[str, Process] = field(default_factory=dict)
    clients: list[Process] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Self]:
        """Yield a tutorial in two empty folders."""
        for machine in "AB":
            (folder / machine).mkdir()
        found = cls(folder)
        try:
            yield found
        finally:
            for process in (*found.clients, *found.lasting.values()):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()

    async def take(self, step: Step) -> None:
        """Execute a step."""
        here, (kind, _, rest) = self.folder / step.machine, step.remark.partition(" ")
        if kind == "file":
            (here / rest).write_text(step.text, encoding="utf-8")
        elif kind == "gets":
            for name in rest.split():
                shutil.copy(self.folder / ("B" if step.machine == "A" else "A") / name, here)
        elif step.remark == "goes on":
            self.clients.append(await self._start(step))
        elif kind == "goes":
            await self._serve(step, rest.partition('"')[2].rstrip('"'))
        else:
            if step.remark == "after the clients":
                for process in self.clients:
                    await self._end(process)
            await self._end(await self._start(step))

    async def interrupt(self) -> None:
        """Interrupt the servers, as Ctrl-C does; they end with 0."""
        for process in self.lasting.values():
            process.send_signal(signal.SIGINT)
            await self._end(process)

    async def _start(self, step: Step) -> Process:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        more = {"PATH": path, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        arguments = ("bash", "-euo", "pipefail", "-c", step.text)
        where = self.folder / step.machine
        return await asyncio.create_subprocess_exec(
            *arguments, cwd=where, env=os.environ | more, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE
        )

    async def _serve(self, step: Step, text: str) -> None:
        process = self.lasting[step.text] = await self._start(step)
        assert process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            while line := (await process.stdout.readline()).decode():
                self.printed.append(line)
                if text in line:
                    return
        await self._end(process)

    async def _end(self, process: Process) -> None:
        try:
            async with asyncio.timeout(COMMAND_BOUND_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
        self.printed.append(out.decode())
        assert process.returncode == 0, f"ended with {process.returncode}:\n{''.join(self.printed)}\n{err.decode()}"
