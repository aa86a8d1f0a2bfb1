"""The trainer of `epochal client`: checked before the client joins its run, and opened after it.

The rule kept here: what can be wrong with it is said before the client joins, so that nobody else sees a member that
cannot train. Importing torch and transformers takes most of a client's start, though. So where only they themselves can
be the matter (a usual device, a model that transformers has, no option that torch must judge), they are imported, and
the rest is checked, while the client joins and fetches the model; what is wrong then ends it at once.
"""

import asyncio
import gc
import logging
import math
from collections.abc import Callable
from functools import partial

from epochal.data_providers.tcp.client_connection import DataServerAccess
from epochal.run_manager.context import RunAccess
from epochal.runtime.garbage import no_collections
from epochal.runtime.importing_call import ImportingCall
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.trainers.architectures import TORCH
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import (
    NULL,
    TRAINERS,
    TrainerOptions,
    check_mesh_trains,
    check_suits,
    check_trains,
    is_surely_opened,
    open_mesh_trainer,
    open_trainer,
)

log = logging.getLogger(__name__)

MODULES_OF_A_TRANSFORMER = 2400
"""Approximate number of modules searched until a transformer is checked, the check itself counted as a few hundred."""


class ClientTrainer:
    """The trainer of one client. Call `close` at the end, whatever has happened.

    Args:
        name: of the trainer.
        options: of the trainers that have some.
        mesh: the mesh that trains; None for one process.
    """

    def __init__(self, name: str, options: TrainerOptions, mesh: MeshOptions | None) -> None:
        self._name = name
        self._options = options
        self._mesh = mesh
        self._checking: ImportingCall | None = None

    @property
    def may_open_late(self) -> bool:
        """Whether it may be opened while the client joins, so that the time can be shown."""
        return self._name == TORCH and self._mesh is None and self._options.torch.suits_any_machine

    async def check(self, state: StateFile, spec: ModelSpec) -> None:
        """Raise what `open_trainer` would if the run cannot be trained, as far as it is known before joining."""
        name = self._name
        if name == NULL and not spec.dummy:
            log.warning("null_trainer_of_a_real_model", extra={"consequence": "its zeros count as results of the run"})
        if self._mesh is not None:
            await asyncio.to_thread(check_mesh_trains, self._mesh, state, spec)
        elif is_surely_opened(name, spec, self._options):
            check_suits(name, state, spec, self._options)
            self._check_beside(state, spec)
        else:
            await asyncio.to_thread(check_trains, name, state, spec, self._options)

    async def check_further(self) -> None:
        """Raise what `check` would, had it not begun to import something. Return once everything is checked."""
        if self._checking is not None:
            await self._checking.ended()

    async def open(self, access: RunAccess, worker: Worker) -> Trainer:
        """Return the trainer, once it is checked. Raises what `open_trainer` does."""
        state, spec = access.state, access.spec
        if self._mesh is not None:
            servers = DataServerAccess(access.ticket, access.document_version)
            return await open_mesh_trainer(self._mesh, state, spec, servers, worker)
        if is_surely_opened(self._name, spec, self._options):
            await self._check_beside(state, spec).ended()
        opening = partial(open_trainer, self._name, state, spec, worker, self._options)
        return opening() if self._name in TRAINERS else await worker.run(opening)  # a package's may take its time

    def opens_in_s(self) -> float:
        """Return about how many seconds `open` will still take."""
        return math.inf if self._checking is None else self._checking.left_s()

    def close(self) -> None:
        """Stop what is being imported for nothing, and wait a little for its end."""
        if self._checking is not None:
            self._checking.stop()
            self._checking.join()

    def _check_beside(self, state: StateFile, spec: ModelSpec) -> ImportingCall:
        """Begin to check in a separate thread, with all imports, unless that has begun."""
        if self._checking is None:
            check = partial(check_trains, self._name, state, spec, self._options)
            self._checking = ImportingCall(partial(_with_few_collections, check), MODULES_OF_A_TRANSFORMER)
            self._checking.start()
        return self._checking


def _with_few_collections(check: Callable[[], None]) -> None:
    """Call the check, and leave what it has imported out of the collections of garbage."""
    with no_collections():
        check()
        gc.freeze()
