"""`epochal watch URL`: a run as a full-screen view on this terminal.

The rule kept here: however the view ends, by a key, a signal or an error, the terminal is as it was before. Where there
is none any more, the process ends at once.
"""

import asyncio
import signal
import sys
import termios
from functools import partial

from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.task_errors import first_error
from epochal.state.errors import EpochalError
from epochal.view.terminal.operator_desk import OperatorDesk
from epochal.view.terminal.run_reader import RunReader
from epochal.view.terminal.view_state import RunPicture
from epochal.view.terminal.watch_app import WatchApp

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def _end_by(number: signal.Signals, app: WatchApp) -> None:
    """End the view because of a signal; if its terminal is gone, for which textual would wait, as by default."""
    try:
        termios.tcgetattr(sys.stdin)
    except termios.error:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    app.exit()


async def watch_run(client: ViewerClient, desk: OperatorDesk, policy: RetryPolicy) -> None:
    """Show a run on this terminal until the user leaves.

    Args:
        client: the coordinator.
        desk: for an operator's actions, with the coordinator's address as the user gave it, without a password.
        policy: how long to retry when it does not answer.

    Raises:
        CoordinatorUnreachable, Refused, InvalidDocument: as `RunReader.run`.
    """
    reader = RunReader(client, policy, RunPicture(desk.address))
    app = WatchApp(reader, desk)
    failures: list[BaseException] = []

    async def read() -> None:
        try:
            await reader.run()
        except BaseExceptionGroup as group:
            failures.append(first_error(group, EpochalError))
            app.exit()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, partial(_end_by, number, app))
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            await app.run_async()
            reading.cancel()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    if failures:
        raise failures[0]
