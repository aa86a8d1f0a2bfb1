"""`epochal receipt get` and `check`: what a key has contributed to a run, signed by its coordinator."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import CoordinatorCaOption, JsonOption, UrlArgument, trusted
from epochal.coordinator_client.client_key import ClientKey, load_key
from epochal.coordinator_client.receipt_requests import get_receipt
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.files.durable_files import replace_file
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidDocument, InvalidInput
from epochal.state.messages.receipts import Receipt, check_receipt
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible
from epochal.state.wire import canonical_json, parse_document

MAX_RECEIPT_BYTES = 65_536
KEY = re.compile(r"[0-9a-f]{64}")


def get(
    url: UrlArgument,
    key: Annotated[Path, typer.Option(help="File with the member's private key, as `epochal client` has it.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write; an older one is replaced.")] = Path(
        "receipt.json"
    ),
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Get a receipt of what a key has contributed to a run, signed by the coordinator.

    The key's owner gets it, as a member or after leaving. Keep it: anybody can check it without the coordinator.
    """
    found = asyncio.run(_got(url, load_key(key), trusted(tls_ca)))
    try:
        replace_file(out, canonical_json(found) + b"\n")
    except OSError as error:
        raise InvalidInput(f"--out {out} cannot be written: {error.strerror}") from error
    _show(found)
    typer.echo(f"the receipt: {out}", err=True)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A receipt of `epochal receipt get`.")],
    coordinator_key: Annotated[
        str | None,
        typer.Option(
            "--coordinator-key",
            metavar="HEX",
            help="Public key of the run's coordinator, as you know it: its page, a published run's manifest.json and "
            "KEY.known_coordinators of a member name it. Default: the one in the receipt, which proves only that the "
            "receipt is whole.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="FOLDER",
            help="A run directory, or a published run's folder: also check that its outcomes up to the receipt's step "
            "are those of which the receipt holds the chain.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a receipt, without the coordinator (exit code 1 if it is not what it says)."""
    known = None if coordinator_key is None else _parsed_key(coordinator_key)
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_RECEIPT_BYTES)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    try:
        found = parse_document(Receipt, data)
        check_receipt(found, known)
        if run is not None:
            from epochal.coordinator.proof.receipt_history import check_history

            asyncio.run(check_history(run, found))
    except InvalidDocument as error:
        typer.echo(f"{file}: {visible(error.message)}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(canonical_json(found).decode())
        return
    _show(found)
    typer.echo(
        "signed by the coordinator with the key that you named"
        if known is not None
        else "whole, and signed by the key in it: compare that with the run's (--coordinator-key)"
    )
    if run is not None:
        typer.echo(f"of the run in {run}, which had this chain and this key as of that step")


def _parsed_key(text: str) -> str:
    """Return a public key as documents have it. Raise `InvalidInput` if it is none."""
    key = text.strip().lower()
    if not KEY.fullmatch(key):
        raise InvalidInput(f"--coordinator-key {text!r} is no public key; allowed: 64 hex digits")
    return key


async def _got(url: str, key: ClientKey, verify: bool | str) -> Receipt:
    async with await ViewerClient.connect(url, RetryPolicy(attempts=1), verify) as api:
        return await get_receipt(api, key)


def _show(receipt: Receipt) -> None:
    issued = datetime.fromtimestamp(receipt.issued_s, UTC).isoformat(timespec="seconds")
    steps = "" if receipt.first_step is None else f", from step {receipt.first_step} to {receipt.last_step}"
    typer.echo(f"run {visible(receipt.run_id)}, client {receipt.client_id}, as of step {receipt.step}, {issued}")
    typer.echo(
        f"{counted(receipt.rounds, 'result')} applied{steps}: {counted(receipt.batches, 'batch', 'batches')}, "
        f"{counted(receipt.tokens, 'token')}"
    )
    typer.echo(f"as they counted, with their factors: {receipt.weighed_tokens:,.0f} tokens")
    if receipt.compacted_segments:
        typer.echo(
            f"the journal's first {receipt.compacted_segments} segments were kept as a proof: their rounds are counted "
            "as the proof holds them"
        )
    typer.echo(f"chain of all outcomes up to that step: {receipt.outcome_chain}")
    typer.echo(f"coordinator's key: {receipt.coordinator_key}")
