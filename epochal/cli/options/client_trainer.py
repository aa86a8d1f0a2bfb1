"""The trainer of `epochal client`: checked before the client joins its run, and opened after it.

The rule kept here: mistakes in it are reported before the client joins, so that nobody else sees a member that cannot
train.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from epochal.cli.options.torch_trainer import check_goes_with_torch
from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.operator import config_of
from epochal.data_providers.tcp.client_connection import DataServerAccess
from epochal.run_manager.context import RunAccess
from epochal.runtime.garbage import no_collections
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.state.shown.join_guide import trainer_named
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import (
    NULL,
    TRAINERS,
    TrainerOptions,
    check_mesh_trains,
    check_trains,
    open_mesh_trainer,
    open_trainer,
)
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS

log = logging.getLogger(__name__)


AUTO = "auto"
"""The option's value for the trainer that the run needs."""


class ClientTrainer:
    """The trainer of one client.

    Args:
        name: of the trainer; `AUTO` for the one that the run needs.
        options: of the trainers that have some.
        mesh: the mesh that trains; None for one process.
    """

    def __init__(self, name: str, options: TrainerOptions, mesh: MeshOptions | None) -> None:
        self._name = name
        self._options = options
        self._mesh = mesh

    async def choose(self, api: CoordinatorClient) -> str:
        """Return the trainer's name; where it is `AUTO`, that which computes the run's model, from now on.

        Raises:
            InvalidInput: the model is that of a package, which only the owner of the machine names, or options were
                given that go with another trainer.
        """
        if self._name != AUTO:
            return self._name
        _, state = await config_of(api)
        spec = state.model.LLM.spec
        name = trainer_named(spec)
        if spec.architecture is Architecture.CUSTOM:
            raise InvalidInput(f"this run is trained by {name!r}, of a package; --trainer names it if you trust that")
        check_goes_with_torch(None if self._options.torch is DEFAULT_TORCH_OPTIONS else self._options.torch, name)
        self._name = name
        if self._mesh is not None:
            self._mesh = replace(self._mesh, trainer=name)
        log.info("trainer_chosen", extra={"trainer": name})
        return name

    async def check(self, state: StateFile, spec: ModelSpec) -> None:
        """Raise what `open_trainer` would if the run cannot be trained. It imports what the trainer needs."""
        name = self._name
        if name == NULL and not spec.dummy:
            log.warning("null_trainer_of_a_real_model", extra={"consequence": "its zeros count as results of the run"})
        check = partial(check_trains, name, state, spec, self._options)
        if self._mesh is not None:
            check = partial(check_mesh_trains, self._mesh, state, spec)
        await asyncio.to_thread(_with_few_collections, check)

    async def open(self, access: RunAccess, worker: Worker) -> Trainer:
        """Return the trainer. Raises what `open_trainer` does."""
        state, spec = access.state, access.spec
        if self._mesh is not None:
            servers = DataServerAccess(access.ticket, access.document_version)
            trainer = await open_mesh_trainer(self._mesh, state, spec, servers, worker)
            trainer.mixes = access.mixes
            return trainer
        opening = partial(open_trainer, self._name, state, spec, worker, self._options)
        is_quick = self._name in TRAINERS and spec.adapter is None  # a package's may take its time, and reading a base
        return opening() if is_quick else await worker.run(opening)


def _with_few_collections(check: Callable[[], None]) -> None:
    """Call the check, and leave what it has imported out of the collections of garbage."""
    with no_collections():
        check()
        gc.freeze()
