"""A tutorial's page, executed: files are written as the page shows them, commands run in their machine's folder.

A block follows a comment that says where it belongs, `<!-- machine A -->`, and maybe what is special about it:

- `file NAME`: the block is the file's content;
- `goes on until "TEXT"`: the command keeps running while the page goes on, and has printed this text by then;
- `goes on until it trains`: the same of a client, which has delivered a result by then;
- `goes on`: a client that ends by itself;
- `after the clients`: the commands above that `go on` without a text must end first, with 0.

Without a block:

- `gets NAME…`: these files are copied there from machine A, or to it from machine B;
- `interrupts the last server`, `interrupts the last client`: Ctrl-C for the newest one that goes on; it ends with 0.

A block without such a comment is not executed; `tests/unit/docs/test_blocks.py` says what becomes of it.
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

from epochal.cli.options.admin_token import ADMIN_TOKEN_VARIABLE
from epochal.cli.output.printing import ADMIN_TOKEN_SHOWN
from tests.support.bounds import BOUND_S

STEP = re.compile(r"^<!-- machine ([ABC])(?:, ([^\n]*))? -->\n(?:```\w+\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
TRAINS = "round_trained"
"""What a client logs when it has delivered a result."""

COMMAND_BOUND_S = 3 * BOUND_S
"""Seconds for a command to end, which may be a client that trains from a run's beginning to its end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a page: a machine, what is special about it, and the block."""

    machine: str
    remark: str
    text: str


def steps_of(page: Path, replaced: Mapping[str, str]) -> list[Step]:
    """Return a page's steps, with some texts replaced."""
    text = page.read_text(encoding="utf-8")
    for before, after in replaced.items():
        assert before in text, f"{page} does not say {before}"
        text = text.replace(before, after)
    return [Step(machine, remark, block) for machine, remark, block in STEP.findall(text)]


class Lasting:
    """A process that goes on while the page does; what it prints is read all the time, so that it never waits for that.

    Attributes:
        printed: its output and its log.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.printed = ""
        self._news = asyncio.Condition()
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [asyncio.ensure_future(self._read(each)) for each in (process.stdout, process.stderr)]

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            async with self._news:
                self.printed += line.decode()
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def said(self, text: str) -> None:
        """Wait until it has printed the text; fail if it ends without."""
        async with asyncio.timeout(BOUND_S), self._news:
            await self._news.wait_for(lambda: text in self.printed or self.process.stdout.at_eof())  # type: ignore[union-attr]
        assert text in self.printed, self.printed

    async def ended(self) -> str:
        """Wait for its end, with 0; return what it printed."""
        try:
            async with asyncio.timeout(COMMAND_BOUND_S):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            code = await self.process.wait()
        for reader in self._readers:
            await reader
        assert code == 0, f"ended with {code}:\n{self.printed}"
        return self.printed

    async def interrupted(self) -> str:
        """Send what Ctrl-C sends, and wait for its end, with 0; return what it printed."""
        self.process.send_signal(signal.SIGINT)
        return await self.ended()

    async def killed(self) -> None:
        """End it, if it has not ended yet."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        for reader in self._readers:
            await reader


@dataclass
class Tutorial:
    """A page that is being executed, in a folder for each machine. Leaving the context ends what it started.

    Attributes:
        printed: what the commands have printed, each when it had ended.
    """

    folder: Path
    printed: list[str] = field(default_factory=list)
    servers: list[Lasting] = field(default_factory=list)
    clients: list[Lasting] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Self]:
        """Yield a tutorial in an empty folder for each machine."""
        for machine in "ABC":
            (folder / machine).mkdir()
        found = cls(folder)
        try:
            yield found
        finally:
            for lasting in (*found.clients, *found.servers):
                await lasting.killed()

    async def take(self, step: Step) -> None:
        """Execute a step."""
        here, (kind, _, rest) = self.folder / step.machine, step.remark.partition(" ")
        if kind == "file":
            (here / rest).write_text(step.text, encoding="utf-8")
        elif kind == "gets":
            for name in rest.split():
                shutil.copy(self.folder / ("B" if step.machine == "A" else "A") / name, here)
        elif kind == "interrupts":
            lasting = self.clients if rest == "the last client" else self.servers
            self.printed.append(await lasting.pop().interrupted())
        elif kind == "goes":
            await self._go_on(step, rest)
        else:
            assert step.remark in ("", "after the clients"), step
            if step.remark:
                while self.clients:
                    self.printed.append(await self.clients.pop(0).ended())
            self.printed.append(await Lasting(await self._start(step)).ended())

    async def interrupt(self) -> None:
        """Interrupt the servers, as Ctrl-C does; they end with 0."""
        while self.servers:
            self.printed.append(await self.servers.pop().interrupted())

    async def _start(self, step: Step) -> Process:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        more = {"PATH": path, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        arguments = ("bash", "-euo", "pipefail", "-c", step.text)
        return await asyncio.create_subprocess_exec(
            *arguments,
            cwd=self.folder / step.machine,
            env=os.environ | more | self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def _go_on(self, step: Step, until: str) -> None:
        """Start what goes on. A server that shows an admin token gives it to the commands after it."""
        lasting = Lasting(await self._start(step))
        quoted = until.partition('"')[2].rstrip('"')
        (self.servers if quoted else self.clients).append(lasting)
        if quoted or until.endswith("it trains"):
            await lasting.said(quoted or TRAINS)
        token = re.search(rf"{re.escape(ADMIN_TOKEN_SHOWN)}(\S+)", lasting.printed)
        if token is not None:
            self.variables[ADMIN_TOKEN_VARIABLE] = token[1]
