"""Trainers by name."""

from dataclasses import dataclass, field, replace

from epochal.data_providers.tcp.client_connection import TicketOrAccess
from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import Architecture, DummyOptimizer, InnerOptimizer, ModelSpec, Muon
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput, Mistake, Unsupported
from epochal.state.messages.requests import MAX_NAME_CHARS
from epochal.trainers.architectures import NUMPY, TORCH, check_repeatable, check_trainer, open_model
from epochal.trainers.learner import Model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.mesh.mesh_trainer import MeshTrainer
from epochal.trainers.null import NullTrainer
from epochal.trainers.packages import (
    TrainerSetup,
    UnknownTrainer,
    check_may_open,
    installed_trainers,
    open_packaged_trainer,
    place_of_trainer,
    trainer_class,
    trainer_of,
)
from epochal.trainers.protocol import RevealsInnerState, Trainer
from epochal.trainers.remote.remote_trainer import RemoteTrainer
from epochal.trainers.remote.service_client import TrainingServiceClient
from epochal.trainers.remote.service_messages import SessionRequest
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions

NULL, REMOTE = "null", "remote"
TRAINERS = (NULL, NUMPY, REMOTE, TORCH)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The `remote` trainer's training service.

    Attributes:
        url: the service's base URL.
        retry_policy: how long a failed request is repeated.
        token: the service's token; None if it needs none.
        verify: whether to verify the TLS certificate, or a file with the authorities to trust (PEM).
    """

    url: str
    retry_policy: RetryPolicy
    token: str | None = None
    verify: bool | str = True


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """The options of trainers: the `remote` trainer's service, how torch computes, and what the run's model may use."""

    remote: RemoteOptions | None = None
    torch: TorchOptions = DEFAULT_TORCH_OPTIONS
    permissions: Permissions = field(default_factory=Permissions.of_volunteer)


DEFAULT_TRAINER_OPTIONS = TrainerOptions()


def open_trainer(
    name: str, state: StateFile, spec: ModelSpec, worker: Worker, options: TrainerOptions = DEFAULT_TRAINER_OPTIONS
) -> Trainer:
    """Open the trainer of this name for the run that the state file describes.

    Args:
        name: one of `TRAINERS`, or the trainer of a package: its entry point, or `module:Class`.
        state: the run's state file.
        spec: the run's model, complete.
        worker: runs the trainer's arithmetic; closed by the trainer.
        options: for the trainers that have some.

    Raises:
        InvalidInput: no trainer has this name, or the run is trained by another one; the user's fault, the message says
            which names there are. Or this machine lacks a device or a package that the trainer needs.
        Unsupported: the trainer cannot train what the file asks for; the message names the lines to change.
    """
    check_trainer_name(name)
    optimizer = _check_fits(name, state, spec, options.permissions)
    if name not in TRAINERS:
        found = open_packaged_trainer(TrainerSetup(name, state, spec, optimizer, worker, options.torch))
        if state.reveals_inner_states and not isinstance(found, RevealsInnerState):
            allowed = '"reset" where there is a `[verify]` by replays: this trainer does not give its state away'
            raise _unsupported(name, "merge.inner_state", "keep", allowed)
        return found
    if name == REMOTE:
        return _open_remote(state, spec, worker, options.remote)
    model = _model_of(name, spec, _torch_of(options))
    if name == NULL:
        return NullTrainer(model)
    return LearnerTrainer(model, optimizer, state.merge.inner_state == "keep", worker, name)


def check_trains(
    name: str, state: StateFile, spec: ModelSpec, options: TrainerOptions = DEFAULT_TRAINER_OPTIONS
) -> None:
    """Check whether `open_trainer` can open the trainer, without opening it: before this machine joins the run.

    Args:
        name: as in `open_trainer`.
        state: the run's state file.
        spec: the run's model; one that is not complete is not opened.
        options: for the trainers that have some.

    Raises:
        InvalidInput, Unsupported: as `open_trainer`.
    """
    check_trainer_name(name)
    _check_fits(name, state, spec, options.permissions)
    if spec.is_complete and (name in TRAINERS or spec.architecture is Architecture.CUSTOM):
        model = _model_of(name, spec, _torch_of(options))
        if name == TORCH and (spec.adapter is None) == (spec.base is None):  # a base is known with the first checkpoint
            model.learner()  # asks for the device and an adapter's base, and makes no module yet


def check_mesh_trains(options: MeshOptions, state: StateFile, spec: ModelSpec) -> None:
    """Check whether `open_mesh_trainer` can train the run, before this machine joins it. Raises as that does."""
    name = options.trainer
    _check_fits(name, state, spec, options.permissions)
    if spec.adapter is not None:
        raise _unsupported(f"{name} with --mesh", "model.LLM.adapter", spec.adapter.variant, "no adapter with a mesh")
    if name == TORCH:
        if isinstance(state.model.LLM.optimizer, Muon):  # which takes whole matrices; a process has shards of them
            raise _unsupported(f"{name} with --mesh", "model.LLM.optimizer", Muon.variant, "AdamW or Dummy with a mesh")
        from epochal.trainers.torch.sharding import check_devices

        check_devices(options.torch, options.process_count)
    if spec.is_complete:
        model = _model_of(name, spec, replace(options.torch, device="cpu"))  # the devices are its processes'
        if name == TORCH:
            model.learner()  # asks for the attention, and makes no module yet


async def open_mesh_trainer(
    options: MeshOptions, state: StateFile, spec: ModelSpec, servers: TicketOrAccess, worker: Worker
) -> MeshTrainer:
    """Open the `numpy` or the `torch` trainer on a mesh and start its processes.

    Args:
        options: the mesh, and which of the trainers it is.
        state: the run's state file.
        spec: the run's model, complete.
        servers: as in `MeshTrainer`.
        worker: as in `open_trainer`.

    Raises:
        InvalidInput: the run is trained by a trainer of another package, or this machine lacks what the mesh needs.
        Unsupported: the trainer cannot train what the file asks for.
        MeshBroken: the processes did not start.
    """
    check_mesh_trains(options, state, spec)
    return await MeshTrainer.open(options, state, spec, servers, worker)


def check_trainer_name(name: str) -> None:
    """Raise `UnknownTrainer` unless there is a trainer of this name; one of another package is imported."""
    if name in TRAINERS:
        return
    if place_of_trainer(name) is None:
        known = ", ".join((*TRAINERS, *installed_trainers()))
        message = f"there is no trainer {name!r}; allowed: {known}; or module:Class, a class of a package"
        raise UnknownTrainer(message, trainer=name)
    if len(name) > MAX_NAME_CHARS:
        message = f"trainer {name!r} has a name of more than {MAX_NAME_CHARS} characters; register it as an entry point"
        raise InvalidInput(message, trainer=name)
    trainer_class(name, f"trainer {name!r}")


def check_computes_again(name: str) -> None:
    """Raise `InvalidInput` unless a trainer of this name can train others' results again on this machine."""
    check_trainer_name(name)
    if name in (NULL, REMOTE):
        allowed = f"{NUMPY}, {TORCH}, or the trainer of a package"
        raise InvalidInput(f"--trainer {name}: results are trained again on this machine; allowed: {allowed}")


def _check_fits(name: str, state: StateFile, spec: ModelSpec, permissions: Permissions) -> InnerOptimizer | None:
    """Raise `InvalidInput` or `Unsupported` unless this trainer trains such runs; return the run's inner optimizer."""
    _check_is_the_runs(name, spec, permissions)
    if name == NULL:
        return None
    optimizer = _optimizer_of(name, state)
    if name in (NUMPY, TORCH):
        check_trainer(name, spec.architecture)
    if state.is_replayed:
        check_repeatable(state, spec)
    if name == REMOTE and spec.adapter is not None:
        allowed = f"no adapter, or --trainer {TORCH}: each client reads the base itself"
        raise _unsupported(REMOTE, "model.LLM.adapter", spec.adapter.variant, allowed)
    if name == REMOTE and state.reveals_inner_states:
        allowed = '"reset" where there is a `[verify]` by replays: a training service does not give its state away'
        raise _unsupported(REMOTE, "merge.inner_state", "keep", allowed)
    if name == REMOTE and state.merge.delay and state.merge.inner_state == "keep":
        allowed = '"reset", or merge.delay = 0: a training service holds the state of one undecided round'
        raise _unsupported(REMOTE, "merge.inner_state", "keep", allowed)
    return optimizer


def _check_is_the_runs(name: str, spec: ModelSpec, permissions: Permissions) -> None:
    """Raise `InvalidInput` if the run's model belongs to another trainer.

    `null` goes with every model whose package is allowed; who names a package's trainer himself allows that one.
    """
    if spec.architecture is not Architecture.CUSTOM or spec.dummy:
        return
    if name == NULL:
        check_may_open(spec, permissions)
        return
    wanted = trainer_of(spec)
    if name in TRAINERS or (name != wanted and place_of_trainer(name) != place_of_trainer(wanted)):
        raise InvalidInput(f"the run has a model of the trainer {wanted!r}; allowed: --trainer {wanted}", trainer=name)


def _open_remote(state: StateFile, spec: ModelSpec, worker: Worker, remote: RemoteOptions | None) -> RemoteTrainer:
    if remote is None:
        raise InvalidInput("the remote trainer needs the URL of its training service")
    request = SessionRequest(spec, _optimizer_of(REMOTE, state), state.merge.inner_state)
    model = _model_of(REMOTE, spec)
    service = TrainingServiceClient(remote.url, remote.retry_policy, remote.token, remote.verify)
    return RemoteTrainer(service, model, request, worker)


def _check_not_dummy(trainer: str, spec: ModelSpec) -> None:
    if spec.dummy and trainer != NULL:
        allowed = f"a run whose model has parameters, or --trainer {NULL}: this one has no arithmetic"
        raise _unsupported(trainer, "model.LLM.checkpoint", "Dummy", allowed)


def _model_of(trainer: str, spec: ModelSpec, options: TorchOptions = DEFAULT_TORCH_OPTIONS) -> Model:
    _check_not_dummy(trainer, spec)
    return open_model(spec, f"trainer {trainer}", options)


def _torch_of(options: TrainerOptions) -> TorchOptions:
    return replace(options.torch, lends_token=options.permissions.lends_credentials(HUB_HOST))


def _optimizer_of(trainer: str, state: StateFile) -> InnerOptimizer | None:
    """Return the run's optimizer; None for the one that leaves the parameters as they are."""
    optimizer = state.model.LLM.optimizer
    if not isinstance(optimizer, InnerOptimizer | DummyOptimizer):
        raise _unsupported(trainer, "model.LLM.optimizer", optimizer.variant, "AdamW, Muon or Dummy")
    return optimizer if isinstance(optimizer, InnerOptimizer) else None


def _unsupported(trainer: str, path: str, value: str, allowed: str) -> Unsupported:
    return Unsupported(f"trainer {trainer}", (Mistake(path, value, allowed),))
