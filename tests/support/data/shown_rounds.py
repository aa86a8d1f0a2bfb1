"""Rounds as views show them, and what then stands on a terminal."""

import io
from dataclasses import fields
from typing import Any

from rich.console import Console, RenderableType

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.wire import ClientId
from tests.support.data.round_details import detail_of


def drawn(page: RenderableType, width: int = 100, height: int = 24) -> str:
    """Return what stands on a terminal of this size."""
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(page)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def client(number: int, **parts: Any) -> ClientFigures:
    """Return a client of a round that says nothing but these parts."""
    known: dict[str, Any] = {field.name: None for field in fields(ClientFigures)}
    known |= {"client_id": ClientId(f"{number:032x}"), "name": "", "batches": 1, "witness": False, "fate": "applied"}
    return ClientFigures(**(known | {"detail": "", "result_bytes": 5, "tokens": 9} | parts))


def detail(*clients: ClientFigures) -> RoundDetail:
    """Return a round of 9 seconds with these clients."""
    return detail_of(0, *clients, train_s=8.0, witness_s=1.0, reason="all results came")
