"""`epochal audit`: check a run from what its store holds."""

import asyncio
import contextlib
import json
import secrets
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochal.cli.options.admin_token import ADMIN_TOKEN_VARIABLE, AdminToken, given_token
from epochal.cli.options.shared import CoordinatorCaOption, JsonOption, StoreArgument, trusted
from epochal.cli.options.torch_choice import TorchChoice
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator.proof.publishing import fetch
from epochal.coordinator.store.published_files import FolderFiles
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible
from epochal.tools.published_place import is_bucket, published_files
from epochal.trainers.architectures import NUMPY
from epochal.view.check_report import print_checks

if TYPE_CHECKING:  # with what trains, which other audits do not need
    from epochal.run_manager.context import ClientDependencies
    from epochal.tools.replays.stored_replays import StoredReplay, StoredReplays

MAX_RETRAINED = 10_000


def audit(
    store: StoreArgument,
    computing: TorchChoice,
    as_json: JsonOption = False,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Also compute the parameters again, and how long results are, from a checkpoint and the results.",
        ),
    ] = False,
    retrain: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_RETRAINED,
            metavar="N",
            help="With --recompute: train N random results of the kept rounds again on this machine, and show how far "
            "each is from that, beside the tolerance.",
        ),
    ] = 0,
    trainer: Annotated[
        str | None,
        typer.Option(
            help="With --retrain: numpy (the embedded model), torch, or the trainer of a package. Default: numpy."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", help="With --retrain: the run's data; default: as the state file names them."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="With --retrain: draws the results; default: a random one, which is shown.")
    ] = None,
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record",
            help="Report the result to the coordinator that serves the run on this machine, which shows when the run "
            "was audited last. Default: where the admin token is given.",
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The coordinator, for --record. Default: the one that serves the store here."),
    ] = None,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Replay a run's journal and check that each batch was applied once; report what is wrong (exit code 1).

    STORE may also be a published run: a folder, or the URL of a bucket's, which is fetched to a temporary folder.
    """
    if retrain and not recompute:
        raise InvalidInput("--retrain goes with --recompute, which proves the replicas from which results began")
    if not retrain:
        _check_unused({"--trainer": trainer, "--data": data, "--seed": seed, "--device etc.": computing.options()})
    drawn = secrets.randbelow(2**31) if seed is None else seed
    dependencies = _dependencies(trainer or NUMPY, computing, data) if retrain else None
    report, replays = asyncio.run(_audited(store, recompute, retrain, dependencies, drawn))
    _show(report, replays, drawn, as_json=as_json)
    if record or (record is None and given_token(admin_token) is not None):
        fields = _to_record(report, replays, drawn)
        obstacle = asyncio.run(_recorded(store, coordinator, given_token(admin_token), tls_ca, fields))
        if obstacle and record:
            raise InvalidInput(f"--record: {obstacle}")
        typer.echo(f"not recorded: {obstacle}" if obstacle else "recorded in the run's history", err=True)
    is_done = replays is None or all(replay.passes for replay in replays.replays)
    raise typer.Exit(0 if report.passed and is_done else 1)


def _check_unused(of_retrain: dict[str, object]) -> None:
    """Raise `InvalidInput` if an option has a value that goes with --retrain alone."""
    given = [name for name, value in of_retrain.items() if value is not None]
    if given:
        raise InvalidInput(f"without --retrain nothing is trained: leave out {', '.join(given)}, or add --retrain N")


def _show(report: AuditReport, found: "StoredReplays | None", seed: int, *, as_json: bool) -> None:
    """Print an audit, and the results that were trained again, drawn by the seed; None if none were to be."""
    fields = asdict(report)
    if as_json:
        again = {} if found is None else {"retrained": list(map(asdict, found.replays)), "seed": seed}
        if found is not None:
            again |= {"computable_count": found.computable_count, "kept_count": found.kept_count}
        typer.echo(json.dumps(fields | again, indent=2))
        return
    print_checks(f"Audit of run {fields.pop('run_id')}", fields, report.problems, report.remarks)
    if found is not None:
        typer.echo(f"{_summary(found, seed)}:")
        for replay in found.replays:
            typer.echo(f"  {_line_of(replay)}")


def _summary(found: "StoredReplays", seed: int) -> str:
    of_kept = f"{found.computable_count} of {counted(found.kept_count, 'kept result')} can be computed"
    return f"{counted(len(found.replays), 'result')} trained again, drawn with --seed {seed}; {of_kept}"


def _to_record(report: AuditReport, found: "StoredReplays | None", seed: int) -> dict[str, Any]:
    """Return an audit's fields; results that were trained again are a remark, and those that do not pass problems."""
    if found is not None:
        wrong = tuple(_line_of(replay) for replay in found.replays if not replay.passes)
        problems, remarks = (*report.problems, *wrong), (*report.remarks, _summary(found, seed))
        report = replace(report, problems=problems, remarks=remarks)
    return asdict(report)


async def _audited(
    store: str, recompute: bool, retrain: int, dependencies: "ClientDependencies | None", seed: int
) -> tuple[AuditReport, "StoredReplays | None"]:
    """Return the audit of a store or a publication, and the results that were trained again."""
    with contextlib.ExitStack() as closing:
        if is_bucket(store):
            folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="epochal-audit-"))
            await fetch(published_files(store, is_public=True), FolderFiles(Path(folder)))
            store = folder
        if dependencies is None:
            return await audit_store(store, recompute=recompute), None
        from epochal.tools.replays.stored_replays import check_stored, replay_stored

        await check_stored(store, dependencies)
        report = await audit_store(store, recompute=recompute)
        try:
            return report, await replay_stored(store, retrain, dependencies, seed)
        except EpochalError as error:  # which leaves the audit as it is
            problem = f"no result was trained again: {error.message}"
            return replace(report, problems=(*report.problems, problem)), None


def _dependencies(trainer: str, computing: TorchChoice, data: str | None) -> "ClientDependencies":
    """Return what opens data and trainer. Raise `InvalidInput` for mistakes in their options."""
    from epochal.cli.options.client_data import DataChoice
    from epochal.cli.options.client_trainer import ClientTrainer
    from epochal.cli.options.spool_folder import checked_spool_folder
    from epochal.cli.options.torch_trainer import check_goes_with_torch
    from epochal.run_manager.context import ClientDependencies
    from epochal.run_manager.events import ignore
    from epochal.runtime.permissions import Permissions
    from epochal.runtime.worker_thread import WorkerThread
    from epochal.trainers.registry import TrainerOptions, check_computes_again
    from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS

    check_computes_again(trainer)
    torch = computing.options()
    check_goes_with_torch(torch, trainer)
    permissions = Permissions.of_own_run()
    options = TrainerOptions(None, torch or DEFAULT_TORCH_OPTIONS, permissions)
    return ClientDependencies(
        retry_policy=RetryPolicy(attempts=1),
        new_worker=WorkerThread,
        open_provider=DataChoice(data).opener(True, permissions),
        open_trainer=ClientTrainer(trainer, options, None).open,
        observer=ignore,
        spool_folder=checked_spool_folder(None),
        permissions=permissions,
    )


def _line_of(replay: "StoredReplay") -> str:
    of = f"step {replay.step}, client {replay.client_id}"
    if replay.obstacle:
        return f"{of}: not computed: {visible(replay.obstacle)}"
    moments = ""
    if replay.state_excess is not None:
        moments = f", of moments {replay.state_excess:.4f}, tolerance {replay.state_tolerance:.4f}"
    return (
        f"{of}: excess distance {replay.excess:.4f}, tolerance {replay.tolerance:.4f}{moments}"
        f"{'' if replay.passes else ', NOT within it'}; length × {replay.norm_ratio:.3f}, cosine {replay.cosine:.4f} "
        f"({visible(replay.result_class)} by {replay.replay_class})"
    )


async def _recorded(store: str, url: str | None, token: str | None, tls_ca: Path | None, fields: dict[str, Any]) -> str:
    """Report an audit to the coordinator that serves a store's run; return why that is not possible, or ""."""
    from epochal.coordinator.store.open import open_store_reader
    from epochal.coordinator_client.viewer_client import ViewerClient
    from epochal.state.messages.audit_reports import AuditRecord
    from epochal.tools.checkpoints.readable_run import StoredRun

    run = StoredRun(open_store_reader(store))
    url = url or await run.served_at()
    if url is None:
        return f"no coordinator serves {without_password(store)} on this machine now; --coordinator names one elsewhere"
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
