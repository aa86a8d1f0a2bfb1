"""`epochal audit`: check a run from what its store holds."""

import asyncio
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from epochal.cli.options.admin_token import ADMIN_TOKEN_VARIABLE, AdminToken, given_token
from epochal.cli.options.shared import CoordinatorCaOption, JsonOption, StoreArgument, trusted
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator.proof.publication import fetch
from epochal.coordinator.store.published_files import FolderFiles
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import EpochalError, InvalidInput
from epochal.tools.published_place import is_bucket, published_files
from epochal.view.check_report import print_checks


def audit(
    store: StoreArgument,
    as_json: JsonOption = False,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Also compute the parameters again, and how long results are, from a checkpoint and the results.",
        ),
    ] = False,
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record",
            help="Report the result to the coordinator that serves the run on this machine, which shows when the run "
            "was audited last. Default: where the admin token is given.",
        ),
    ] = None,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Replay a run's journal and check that each batch was applied once; report what is wrong (exit code 1).

    STORE may also be a published run: a folder, or the URL of a bucket's, which is fetched to a temporary folder.
    """
    report = asyncio.run(_audited(store, recompute=recompute))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        fields = asdict(report)
        print_checks(f"Audit of run {fields.pop('run_id')}", fields, report.problems, report.remarks)
    if record or (record is None and given_token(admin_token) is not None):
        obstacle = asyncio.run(_recorded(store, given_token(admin_token), tls_ca, asdict(report)))
        if obstacle and record:
            raise InvalidInput(f"--record: {obstacle}")
        typer.echo(f"not recorded: {obstacle}" if obstacle else "recorded in the run's history", err=True)
    raise typer.Exit(0 if report.passed else 1)


async def _audited(store: str, *, recompute: bool) -> AuditReport:
    if not is_bucket(store):
        return await audit_store(store, recompute=recompute)
    with tempfile.TemporaryDirectory(prefix="epochal-audit-") as folder:
        await fetch(published_files(store, is_public=True), FolderFiles(Path(folder)))
        return await audit_store(folder, recompute=recompute)


async def _recorded(store: str, token: str | None, tls_ca: Path | None, fields: dict[str, Any]) -> str:
    """Report an audit to the coordinator that serves a store's run; return why that is not possible, or ""."""
    from epochal.coordinator.store.open import open_store_reader
    from epochal.coordinator_client.viewer_client import ViewerClient
    from epochal.state.messages.audit_reports import AuditRecord
    from epochal.tools.checkpoints.readable_run import StoredRun

    run = StoredRun(open_store_reader(store))
    url = await run.served_at()
    if url is None:
        return f"no coordinator serves {without_password(store)} on this machine now"
    if token is None:
        return f"the coordinator at {url} takes it with the admin token ({ADMIN_TOKEN_VARIABLE})"
    try:
        async with await ViewerClient.connect(url, RetryPolicy(attempts=1), trusted(tls_ca)) as client:
            if not await run.is_served_by(client):
                return f"the coordinator at {url} serves another run"
            client.use_token(token)
            await client.record_audit(AuditRecord.of(fields))
    except EpochalError as error:
        return error.message
    return ""
