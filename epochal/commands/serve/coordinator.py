"""`epochal coordinator`: serve a run."""

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from epochal import __version__
from epochal.cli.options.notified import notified_of
from epochal.cli.options.shared import (
    RUNS_FOLDER,
    STORE_VARIABLE,
    AllowedHostOption,
    HostOption,
    InsecureOption,
    LogOptions,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    local_path,
)
from epochal.cli.output.people_lines import first_start_box
from epochal.cli.output.printing import ADMIN_TOKEN_SHOWN, LISTENING, run_to_end, say
from epochal.cli.service_manager import serve_until
from epochal.cli.shutdown import interruption
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS
from epochal.runtime.garbage import collect_rarely, share_one_heap
from epochal.runtime.http.certificate_names import own_fingerprint
from epochal.runtime.http.http_client import check_url
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import SharedThreads
from epochal.state.config.data_file import check_together
from epochal.state.config.data_location import Server
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidDocument, InvalidInput, Unsupported
from epochal.state.model.first_model import FirstModel
from epochal.state.model.tensors import TensorLayout
from epochal.tools.serving_data import DataServerOptions, serving_data, trusting_holder_of
from epochal.tools.state_files import read_data_config, read_supported_state, unpinned_data
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.first_parameters import make_first_model, model_layout

log = logging.getLogger(__name__)

UNDECIDED = ("nobody yet", "turn of its members")
"""Words for who decided which data a run trains on, as long as nobody has."""

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar=STORE_VARIABLE,
        help="Folder (or file:// URL) that keeps the run, or postgresql:// URL of a database, from which any "
        "number of coordinators serve it; a run already there is resumed. Default: runs/RUN_ID.",
    ),
]
AdvertiseOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="EPOCHAL_ADVERTISE",
        help="Where others reach this coordinator, for `epochal runs` and commands that read the run's store. Default: "
        "the address on which it listens.",
    ),
]
BlobsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With a store in a database: folder that all coordinators of the run share, for results and "
        "checkpoints. Not needed with `\\[blobs] store`.",
    ),
]
WAIT_FOR_STORE_S = 60.0
WaitForStoreOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--wait-for-store",
        min=0,
        metavar="SECONDS",
        help="How long to wait at the start for a store that cannot be used yet, such as a database that is down.",
    ),
]


def coordinator(
    state_path: Annotated[Path, typer.Argument(metavar="STATE.toml", help="State file of the run.")],
    logged: LogOptions,
    data_config: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA.toml", parser=local_path, help="Also serve the run's data over TCP, as this file says."
        ),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    store: StoreOption = None,
    blobs: BlobsOption = None,
    wait_for_store: WaitForStoreOption = WAIT_FOR_STORE_S,
    restored: Annotated[
        bool,
        typer.Option("--restored", help="The store is a restored backup: clients return to the state that it holds."),
    ] = False,
    new_admin_token: Annotated[
        bool, typer.Option("--new-admin-token", help="Create and print a new admin token; the old one stops working.")
    ] = False,
    new_coordinator_key: Annotated[
        bool,
        typer.Option(
            "--new-coordinator-key",
            help="Replace a key of the coordinator that was lost or stolen; clients with --key must accept it again.",
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Make the model that the run starts from with this seed. Default: a seed from the run's id."),
    ] = None,
    no_genesis: Annotated[
        bool, typer.Option("--no-genesis", help="Do not make that model: wait until `epochal genesis` delivers it.")
    ] = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    insecure: InsecureOption = False,
    allowed_host: AllowedHostOption = None,
    advertise: AdvertiseOption = None,
) -> None:
    """Serve a run: keep its state, assign its data, collect its results. Started again, it resumes the run."""
    share_one_heap()
    logged.start()
    state = read_supported_state(state_path)
    if data_config is not None:
        check_together(state, str(state_path), read_data_config(data_config), str(data_config))
    if advertise is not None:
        check_url(advertise, "--advertise")
    options = ServeOptions(
        store=store or str(RUNS_FOLDER / state.run_id),
        blobs_folder=blobs,
        advertised=advertise,
        endpoint=Endpoint(host, port, tls_cert, tls_key, insecure),
        version=__version__,
        source=str(state_path),
        is_restored=restored,
        wait_for_store_s=wait_for_store,
        notified=notified_of(state),
        other_connections=0 if data_config is None else DEFAULT_LIMITS.connections.total,
        allowed_hosts=tuple(allowed_host or ()),
        new_admin_token=new_admin_token,
        new_coordinator_key=new_coordinator_key,
        genesis=_genesis_of(state, seed, waits=no_genesis),
    )
    run_to_end(_serve_run(state, options, data_config))


def _genesis_of(state: StateFile, seed: int | None, *, waits: bool) -> Genesis:
    """Return the run's model at its start as this command makes it, if the run needs one."""
    made_by_members = state.access.genesis == "members"
    llm = state.model.LLM
    checkpoint, is_made = llm.checkpoint, llm.is_made_from_seed or llm.adapter is not None
    if seed is not None and (waits or made_by_members or not is_made):
        reads = f"`checkpoint = {{ {checkpoint.variant} = … }}`"
        reason = "--no-genesis" if waits else '[access] genesis = "members"' if made_by_members else reads
        raise InvalidInput(f"--seed does not go with {reason}: this start makes no model from a seed")

    async def make(step: int) -> FirstModel:
        return await asyncio.to_thread(make_first_model, state, step, seed)

    return Genesis(_known_layout, None if waits else make, SharedThreads())


def _known_layout(spec: ModelSpec) -> TensorLayout | None:
    """Return the layout of the run's model; None where libraries are not installed that open it."""
    missing = [] if spec.dummy else ARCHITECTURES[spec.architecture].missing_modules(spec)
    if missing:
        log.warning("first_checkpoint_not_compared_with_its_model", extra={"not_installed": missing})
        return None
    try:
        return model_layout(spec)
    except (InvalidInput, Unsupported) as error:
        raise InvalidDocument(f"a first checkpoint of no model: {error.message}", rule="model") from error


def _data_options(state: StateFile, options: ServeOptions, data_config: Path) -> DataServerOptions:
    """Return the options of the run's own data server: the coordinator's certificate, where clients ask over TLS."""
    location, endpoint = state.model.LLM.data_location, options.endpoint
    if isinstance(location, Server) and location.tls:
        return DataServerOptions(data_config, tls_cert=endpoint.tls_cert, tls_key=endpoint.tls_key)
    return DataServerOptions(data_config, insecure=endpoint.insecure)


def _box(state: StateFile, options: ServeOptions, url: str, admin_token: str) -> str:
    certificate, url = options.endpoint.tls_cert, options.advertised or url
    tls_ca = "" if own_fingerprint(certificate) is None else str(certificate)
    invites = state.access.mode == "invitations"
    return first_start_box(state.run_id, url, admin_token, invites=invites, tls_ca=tls_ca)


async def _serve_run(state: StateFile, options: ServeOptions, data_config: Path | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(state, options))
        unpinned = unpinned_data(state)
        if unpinned is not None and served.handlers.insight.status().data_decided_by in UNDECIDED:
            log.warning("data_not_pinned", extra={"reason": unpinned})
        is_watched = sys.stdout.isatty()
        if served.admin_token is not None and not is_watched:
            say(f"{ADMIN_TOKEN_SHOWN}{served.admin_token}")
        if data_config is not None:
            certificate = options.endpoint.tls_cert
            verify = True if certificate is None else trusting_holder_of(certificate)
            itself = await stack.enter_async_context(await CoordinatorClient.connect(served.url, RetryPolicy(), verify))
            itself.use_token(served.handlers.program_token("data-server").token)
            data_options = _data_options(state, options, data_config)
            serving_them = serving_data(state, data_options, itself, served.registry)
            host, port = await stack.enter_async_context(serving_them)
            say(f"data server for run {state.run_id} {LISTENING}{host}:{port}")
        collect_rarely()
        with interruption() as stop:
            line = f"coordinator of run {state.run_id} {LISTENING}{served.url}"
            if served.admin_token is not None and is_watched:
                line += f"\n{_box(state, options, served.url, served.admin_token)}"
            await serve_until(stop, line)
