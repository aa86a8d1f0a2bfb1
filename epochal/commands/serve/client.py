"""`epochal client`: join a run and train until it ends."""

import asyncio
import logging
import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import typer

from epochal import __version__
from epochal.batching.mesh.layout import parse_mesh
from epochal.cli.options.client_data import DataChoice
from epochal.cli.options.client_trainer import AUTO, ClientTrainer
from epochal.cli.options.owner_terms import GpuMemoryOption, NiceOption, OwnerTerms
from epochal.cli.options.permission_options import PermissionOptions, show_permissions
from epochal.cli.options.shared import LogOptions, UrlArgument, trainer_token, trusted
from epochal.cli.options.spool_folder import SpoolOption, checked_spool_folder
from epochal.cli.options.torch_choice import TorchTrainerChoice
from epochal.cli.options.torch_trainer import check_goes_with_torch, free_devices
from epochal.cli.output.client_log import log_event
from epochal.cli.output.printing import run_to_end, say
from epochal.cli.shutdown import Interrupts, end_at_next_signal, end_within
from epochal.coordinator_client.client_key import ClientKey, load_key, load_or_create_key
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.session import ClientProfile
from epochal.run_manager.agent import LEAVE_BOUND_S, Agent, ClientEnd, EndReason
from epochal.run_manager.context import ClientDependencies
from epochal.run_manager.terms.attendance import Leave, Terms, TermsWatch, attended
from epochal.run_manager.terms.machine_use import MachineUse
from epochal.run_manager.terms.priority import lower_priority
from epochal.run_manager.terms.sleep_notice import notice_sleep
from epochal.runtime.connections.bandwidth import limited_to
from epochal.runtime.http.http_client import check_url
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.client_names import MAX_CLIENT_NAME_CHARS, checked_client_name, software_version
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.documents import MAX_SHARE
from epochal.state.errors import InvalidInput
from epochal.state.messages.requests import MAX_INVITATION_CHARS, Capabilities
from epochal.trainers.architectures import NUMPY
from epochal.trainers.mesh.mesh_options import DEFAULT_BATCH_SIZE, MeshOptions
from epochal.trainers.registry import REMOTE, RemoteOptions, TrainerOptions, check_trainer_name
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS

log = logging.getLogger(__name__)

TRAINER_BOUND_S = 60.0
"""Seconds to keep trying a training service that does not answer, before the step fails and is reported."""
CLOSING_BOUND_S = 30.0
"""Seconds to close data and trainer after the round, before the process is ended from within."""
STOP_BOUND_S = 3.0
"""Seconds after the second Ctrl-C, or after a client has left, before the process is ended from within."""


@dataclass(frozen=True, slots=True)
class MeshChoice:
    """The client's mesh; None for what is not given."""

    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="Train as several processes whose devices form a mesh, such as fsdp=4. With --trainer torch the model "
            "is sharded along fsdp and repeated along data; with numpy every process has it.",
        ),
    ] = None
    processes: Annotated[int | None, typer.Option(help="Processes of --mesh. Default: one for each device.")] = None
    batch_size: Annotated[
        int | None, typer.Option(help=f"Rows of one shard of --mesh in each step. Default: {DEFAULT_BATCH_SIZE}.")
    ] = None


KeyOption = Annotated[
    Path | None,
    typer.Option(
        help="File with this client's private key. A client that returns with its key keeps its place in the run."
        " Default: a new key each time, which is kept nowhere."
    ),
]
NewKeyOption = Annotated[bool, typer.Option("--new-key", help="Make the file of --key, unless it exists already.")]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help=f"Name that people see beside this client's id, at most {MAX_CLIENT_NAME_CHARS} characters; it proves "
        "nothing. A client that returns may have another one.",
    ),
]
TrainerOption = Annotated[
    str,
    typer.Option(
        help="What computes: auto (what the run needs), numpy (the embedded model), torch (transformers; needs "
        "epochal\\[torch]), remote (a training service), null (nothing; for tests), or the trainer of a package, by "
        "its name or as module:Class."
    ),
]
TrainerUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address of the training service of --trainer remote. Its token is read from EPOCHAL_TRAINER_TOKEN.",
    ),
]
OwnRunOption = Annotated[
    bool,
    typer.Option(
        "--own-run",
        help="The run is your own: let it use everything of this machine that it names, credentials included.",
    ),
]
ShareOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_SHARE,
        help="Take at most so many batches in a round, unless those of all clients are too few for it. Default: as "
        "many as this machine is fast enough for.",
    ),
]
InvitationOption = Annotated[str | None, typer.Option(help="Invitation code, if the run requires one.")]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        help="Trust this certificate, or these authorities (PEM), for the coordinator, its mirror, the training "
        "service and data servers."
    ),
]
MirrorOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Ask this mirror of the run for updates and checkpoints first. It gets no token, and its bytes are "
        "verified; what it lacks comes from the coordinator.",
    ),
]
ReconnectOption = Annotated[
    float, typer.Option("--reconnect", min=1, help="Seconds to keep trying when the coordinator does not answer.")
]
LeaveOption = Annotated[
    float,
    typer.Option("--leave-within", min=0, help="Maximum number of seconds to finish the round after the first Ctrl-C."),
]


def client(
    url: UrlArgument,
    computing: TorchTrainerChoice,
    data: DataChoice,
    allowed: PermissionOptions,
    meshed: MeshChoice,
    owner: OwnerTerms,
    logged: LogOptions,
    key: KeyOption = None,
    new_key: NewKeyOption = False,
    name: NameOption = None,
    trainer: TrainerOption = AUTO,
    trainer_url: TrainerUrlOption = None,
    own_run: OwnRunOption = False,
    share: ShareOption = None,
    invitation: InvitationOption = None,
    tls_ca: TlsCaOption = None,
    mirror: MirrorOption = None,
    reconnect_s: ReconnectOption = DEFAULT_BOUND_S,
    leave_bound_s: LeaveOption = LEAVE_BOUND_S,
    spool: SpoolOption = None,
    gpu_memory: GpuMemoryOption = None,
    nice: NiceOption = False,
) -> None:
    """Join a run and train until it ends. Ctrl-C finishes the round and leaves; a second Ctrl-C stops at once."""
    logged.start()
    _check_invitation(invitation)
    if trainer != AUTO:
        check_trainer_name(trainer)
    verify, permissions = trusted(tls_ca), Permissions.of_own_run() if own_run else allowed.permissions
    open_provider = data.opener(verify, permissions)
    remote = _remote_options(trainer, trainer_url, verify)
    torch = computing.options(gpu_memory)
    check_goes_with_torch(torch, trainer)
    options = TrainerOptions(remote, torch or DEFAULT_TORCH_OPTIONS, permissions)
    mesh = _mesh_options(NUMPY if trainer == AUTO else trainer, options, meshed, data, verify)
    own_trainer = ClientTrainer(trainer, options, mesh)
    dependencies = ClientDependencies(
        retry_policy=RetryPolicy(bound_s=reconnect_s),
        new_worker=WorkerThread,
        open_provider=open_provider,
        open_trainer=own_trainer.open,
        observer=log_event,
        spool_folder=checked_spool_folder(spool),
        permissions=permissions,
        check_trainer=own_trainer.check,
    )
    capabilities = Capabilities(batches_per_round=share or MAX_SHARE, trainer=trainer, codecs=SPOKEN)
    profile = _profile(_identity(key, new_key), capabilities, invitation, name)
    owner.check_goes_with_mesh(meshed.mesh)
    show_permissions(permissions, data.data, logged.log_format, computing.assets)
    if nice:
        lower_priority()
    with limited_to(owner.bandwidth):
        joining = _Joining(url, verify, mirror, profile, dependencies, leave_bound_s, own_trainer)
        run_to_end(_run(joining, owner.terms))


@dataclass(frozen=True, slots=True)
class _Joining:
    """How the client joins its run, each time that it takes part."""

    url: str
    verify: bool | str
    mirror: str | None
    profile: ClientProfile
    dependencies: ClientDependencies
    leave_bound_s: float
    trainer: ClientTrainer


def _profile(key: ClientKey, capabilities: Capabilities, invitation: str | None, name: str | None) -> ClientProfile:
    software = software_version(__version__)
    return ClientProfile(key, capabilities, invitation, name=_checked_name(name), software=software)


def _check_invitation(code: str | None) -> None:
    """Raise `InvalidInput` unless a text can be an invitation's code."""
    if code is not None and not (0 < len(code) <= MAX_INVITATION_CHARS and code.isprintable() and code == code.strip()):
        raise InvalidInput(
            f"--invitation is no code; allowed: 1 to {MAX_INVITATION_CHARS} characters, as `epochal invite` prints it"
        )


def _checked_name(name: str | None) -> str | None:
    """Return the name in Unicode's normal form C, in which some keyboards and systems do not write it."""
    if name is None:
        return None
    try:
        return checked_client_name(unicodedata.normalize("NFC", name))
    except ValueError as error:
        raise InvalidInput(f"--name {error}") from error


def _identity(path: Path | None, may_make: bool) -> ClientKey:
    if path is None:
        if may_make:
            raise InvalidInput("--new-key goes with --key PATH, which says where to keep the key")
        return ClientKey.ephemeral()
    if not may_make or path.exists():
        return load_key(path)
    made = load_or_create_key(path)
    say(f"made a key: {path}, with public key {made.public_key}")
    return made


def _remote_options(trainer: str, url: str | None, verify: bool | str) -> RemoteOptions | None:
    if (trainer == REMOTE) != (url is not None):
        raise InvalidInput("--trainer remote and --trainer-url URL are given together or not at all")
    if url is None:
        return None
    check_url(url, "training service")
    return RemoteOptions(url, RetryPolicy(bound_s=TRAINER_BOUND_S), trainer_token(), verify)


def _mesh_options(
    trainer: str, options: TrainerOptions, chosen: MeshChoice, data: DataChoice, trust: bool | str
) -> MeshOptions | None:
    if chosen.mesh is None:
        if chosen.processes is not None or chosen.batch_size is not None:
            raise InvalidInput("--processes and --batch-size go with --mesh AXES")
        return None
    return MeshOptions(
        chosen.mesh,
        process_count=math.prod(parse_mesh(chosen.mesh).values()) if chosen.processes is None else chosen.processes,
        batch_size=DEFAULT_BATCH_SIZE if chosen.batch_size is None else chosen.batch_size,
        data=data.data,
        cache_dir=None if data.cache is None else str(data.cache),
        cache_bytes=data.cache_bytes,
        data_trust=trust if isinstance(trust, str) else None,
        data_insecure=data.insecure,
        trainer=trainer,
        permissions=options.permissions,
        torch=options.torch,
    )


async def _run(joining: _Joining, terms: Terms) -> None:
    clock, worker = joining.dependencies.retry_policy.clock, joining.dependencies.new_worker("epochal-terms")
    sleeping = asyncio.get_running_loop().create_task(notice_sleep())
    with _Leaving(joining.leave_bound_s) as leaving:
        try:
            end = await attended(
                TermsWatch(terms, MachineUse(), clock, worker),
                partial(_attend, joining, leaving),
                lambda: leaving.is_wanted,
            )
        finally:
            sleeping.cancel()
            await worker.aclose()
        held = "" if end.step is None else f" with replica {end.step}"
        say(("the run is finished" if end.reason is EndReason.FINISHED else "withdrawn") + held)


async def _attend(joining: _Joining, leaving: "_Leaving", begun: Callable[[Leave], None]) -> ClientEnd:
    """Join the run and take part in it; hand over how the client is asked to leave."""
    dependencies = joining.dependencies
    place = joining.url, dependencies.retry_policy, joining.verify, dependencies.permissions.reach
    async with await CoordinatorClient.connect(*place, joining.mirror) as api:
        capabilities = replace(joining.profile.capabilities, trainer=await joining.trainer.choose(api))
        profile = replace(joining.profile, capabilities=capabilities)
        logged = replace(dependencies, observer=partial(log_event, url=joining.url))
        agent = leaving.agent = Agent(api, profile, logged, joining.leave_bound_s)
        begun(agent.finish_and_withdraw)
        try:
            return await agent.run()
        finally:
            leaving.agent = None
            free_devices()


class _Leaving:
    """Ctrl-C and SIGTERM of a client: the first leaves after the round, or at once before it is a member.

    The second one stops at once. Neither waits for a thread that blocks, on a disk that hangs, say.
    """

    def __init__(self, bound_s: float) -> None:
        self.agent: Agent | None = None
        self._bound_s = bound_s
        running = asyncio.current_task()
        assert running is not None
        self._running = running

    @property
    def is_wanted(self) -> bool:
        """Whether the client is to end for good."""
        return self._interrupts.count > 0

    def __enter__(self) -> Self:
        self._interrupts = Interrupts(self._leave, self._stop)
        return self

    def _leave(self) -> None:
        end_within(self._bound_s + CLOSING_BOUND_S)
        if self.agent is None:
            self._running.cancel()
            return
        log.info("leaving_after_this_round", extra={"at_latest_in_s": self._bound_s, "to_stop_at_once": "again"})
        self.agent.finish_and_withdraw()

    def _stop(self) -> None:
        end_within(STOP_BOUND_S)
        self._running.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._interrupts.restore()
        if not self._interrupts.count:
            return False
        end_at_next_signal()
        end_within(STOP_BOUND_S)
        if kind is not asyncio.CancelledError:
            return False
        self._running.uncancel()
        say("stopped")
        return True
