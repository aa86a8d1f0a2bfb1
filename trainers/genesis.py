"""The model that a run starts from: made from a seed, or read from where the state file's `checkpoint` says."""

import hashlib
import math
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from state.config.model import LocalCheckpoint, ModelSpec
from state.config.state_file import StateFile
from state.errors import InvalidDocument, InvalidInput, Mistake, Unsupported
from state.first_model import FirstModel, model_document
from state.replica import Replica, check_first_values, check_layout, first_replica, parse_checkpoint
from state.tensors import InvalidTensorFile, TensorLayout, Tensors, check_values, parse_tensor_file
from state.wire import parse_document
from trainers.architectures import open_model

GENESIS_DOMAIN = b"epochal/genesis/v1\x00"
MAX_PARAMETERS_BYTES = 16 * 1024**3
"""Maximum size of a file of initial parameters."""
KEPT_LAYOUTS = 4


def model_layout(spec: ModelSpec) -> TensorLayout:
    """Return the names and shapes of the parameters of a model.

    Raises:
        Unsupported: this version does not train the architecture, or not with what is installed.
    """
    return _layout_in(model_document(spec))


@lru_cache(KEPT_LAYOUTS)  # every checkpoint is compared with it, and a large model takes seconds to lay out
def _layout_in(document: bytes) -> TensorLayout:
    spec = parse_document(ModelSpec, document)
    return TensorLayout(tuple(sorted(open_model(spec).shapes.items())))


def make_first_model(state: StateFile, step: int, seed: int | None = None, file: Path | None = None) -> FirstModel:
    """Return the model that the run starts from: the same for the same arguments, on every machine.

    Args:
        state: the run's state file; its `checkpoint` says where the parameters come from.
        step: number of the replica; 0 for a run that starts from its beginning.
        seed: of parameters that are made; None derives one from the run's id.
        file: a file of parameters in place of what the state file names.

    Raises:
        InvalidInput: the file does not hold parameters of the run's model from which it can start; the user's fault.
        Unsupported: this version does not train the architecture.
        TrainerFailed: the parameters do not fit into this machine's memory.
    """
    llm = state.model.LLM
    if file is None and isinstance(llm.checkpoint, LocalCheckpoint):
        file = Path(llm.checkpoint.path)
    if seed is not None and file is not None:
        raise InvalidInput(f"a seed does not go with {file}: the parameters are read from there", path=str(file))
    if file is None and not llm.is_made_from_seed:
        mistake = Mistake("model.LLM.checkpoint", llm.checkpoint.variant, "`checkpoint = { Local = … }`")
        raise Unsupported("first checkpoint", (mistake,))
    if file is None:
        text = state.run_id if seed is None else f"{seed}"
        parameters = open_model(llm.spec).initial_parameters(_seed_bytes(text))
        return FirstModel(llm.spec, first_replica(step, parameters))
    replica = first_replica(step, load_parameters(file))
    try:
        check_layout(replica, model_layout(llm.spec))
        check_first_values(replica, state.merge.max_abs)
    except InvalidDocument as error:
        raise InvalidInput(f"initial parameters {file}: {error.message}", path=str(file)) from error
    return FirstModel(llm.spec, replica)


def check_trainable(state: StateFile, spec: ModelSpec, replica: Replica) -> None:
    """Raise `InvalidDocument` unless clients can train on the replica of a run's checkpoint.

    It must hold the parameters of the run's model. A first checkpoint's values must also be bounded.

    Args:
        state: the run's state file.
        spec: the run's model.
        replica: the checkpoint's.
    """
    try:
        check_layout(replica, model_layout(spec))
        if replica.step == 0:
            check_first_values(replica, state.merge.max_abs)
    except InvalidDocument as error:
        message = f"nobody can train on the checkpoint of step {replica.step} that the coordinator serves: it is"
        raise InvalidDocument(f"{message} {error.message}. Tell the run's operator", **error.context) from error


def _seed_bytes(text: str) -> bytes:
    return hashlib.sha256(GENESIS_DOMAIN + text.encode()).digest()


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
