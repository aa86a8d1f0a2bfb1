"""Helpers of commands: print at once, run a coroutine to its end and raise one known error."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import typer

from runtime.task_errors import first_error
from state.errors import EpochalError

LISTENING = "listening on "
"""What a server prints before its address, once it accepts connections."""


def say(text: str) -> None:
    """Print a line on standard output and flush it: the process that started this one may wait for the line."""
    typer.echo(text)
    sys.stdout.flush()


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. However many of its tasks fail, one known error is raised."""
    try:
        asyncio.run(main)
    except BaseExceptionGroup as group:
        raise first_error(group, EpochalError) from None
