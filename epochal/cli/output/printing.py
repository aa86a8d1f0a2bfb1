"""Prints lines, and runs a command's coroutine."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import typer

from epochal.runtime.task_errors import first_error
from epochal.state.errors import EpochalError

LISTENING = "listening on "
"""Text that a server prints before its address, once it accepts connections."""
ADMIN_TOKEN_SHOWN = "admin token (shown this once): "
"""Text that a coordinator prints before a new admin token, earlier than its address."""


def say(text: str) -> None:
    """Print a line and flush it, because the process that started this one may wait for the line."""
    typer.echo(text)
    sys.stdout.flush()


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. If several of its tasks fail, raise the first known error."""
    try:
        asyncio.run(main)
    except BaseExceptionGroup as group:
        raise first_error(group, EpochalError) from None
