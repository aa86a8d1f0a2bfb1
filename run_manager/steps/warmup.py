"""The Warmup step: get the run's model, or make it if there is none yet, and report readiness."""

import hashlib
import math
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from run_manager.context import StepContext
from run_manager.replica.keeper import HeldReplica
from run_manager.steps.checkpoint import publish_checkpoint
from state.config.model import LocalCheckpoint
from state.documents import RunDocument
from state.errors import InvalidDocument, InvalidInput
from state.replica import Replica, parse_checkpoint, replica_digest
from state.tensors import InvalidTensorFile, Tensors, check_values, layout_of, parse_tensor_file
from state.wire import Sha256

GENESIS_DOMAIN = b"epochal/genesis/v1\x00"
MAX_PARAMETERS_BYTES = 16 * 1024**3


class WarmupStep:
    """Warmup of one run document."""

    def __init__(self, context: StepContext, document: RunDocument) -> None:
        self._context = context
        self._document = document

    async def start(self) -> None:
        """Publish the first checkpoint if this client is elected to, else wait for the replica and report readiness.

        Raises:
            Refused: `fingerprint-differs`, which is final; other refusals end with the next document.
            InvalidInput: this client must load the initial parameters, and its file does not hold them.
        """
        context, document = self._context, self._document
        if document.checkpoint is not None:
            await context.readiness.keep(document.step - 1)
        elif document.checkpointer == context.session.client_id:
            held = await self._initial_replica(document.step - 1)
            await publish_checkpoint(context, held)

    async def _initial_replica(self, step: int) -> HeldReplica:
        """Make or load the run's first replica. Only this client does so; the others take it as it is."""
        context = self._context
        if context.keeper.held is not None and context.keeper.held.step == step:
            return context.keeper.held
        seed = hashlib.sha256(GENESIS_DOMAIN + context.session.run_id.encode()).digest()
        parameters = await context.trainer.initial_parameters(seed)
        source = context.state.model.LLM.checkpoint
        if isinstance(source, LocalCheckpoint):
            wanted = layout_of(parameters)
            parameters = await context.worker.run(partial(load_parameters, Path(source.path)))
            if layout_of(parameters) != wanted:
                raise InvalidInput(f"{source.path} holds the parameters of another model than the run's")
        held = await context.worker.run(partial(_first_replica, step, parameters))
        context.keeper.adopt(held)
        return held


def _first_replica(step: int, parameters: Tensors) -> HeldReplica:
    momentum = {name: np.zeros_like(values) for name, values in parameters.items()}
    replica = Replica(step, parameters, momentum)
    return HeldReplica(replica, Sha256(replica_digest(replica)))


def load_parameters(path: Path) -> Tensors:
    """Return the parameters in a safetensors file: a run's checkpoint, or float32 tensors under the model's names.

    Raises:
        InvalidInput: there is no such file, or it holds something else; the state file's author's fault.
    """
    try:
        if path.stat().st_size > MAX_PARAMETERS_BYTES:
            raise InvalidInput(f"{path} is larger than {MAX_PARAMETERS_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"initial parameters {path}: {error.strerror}", path=str(path)) from error
    with suppress(InvalidDocument):
        return parse_checkpoint(data).parameters
    try:
        tensors = parse_tensor_file(data).tensors()
    except InvalidTensorFile as error:
        raise InvalidInput(f"initial parameters {path}: {error.message}", path=str(path)) from error
    for name, values in tensors.items():
        if check_values(values.reshape(-1), math.inf) is not None:
            raise InvalidInput(f"initial parameters {path}: {name!a} has values that are not finite", path=str(path))
    return tensors
