"""The first parameters of a run: made from a seed, or read from the state file's `checkpoint`."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

from pydantic import ValidationError

from epochal.runtime.long_work import BYTES, long_work
from epochal.state.config.model_table import HF_ARCHITECTURES, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidDocument, InvalidInput
from epochal.state.model.first_model import FirstModel, check_first_parameter, check_first_values, model_document
from epochal.state.model.replica import Replica, check_layout, first_replica
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.state.wire import parse_document
from epochal.trainers.architectures import check_repeatable, is_of_transformers, open_model
from epochal.trainers.learner import ModelInParts
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.model_source import ModelSource
from epochal.trainers.sources.open_model import open_source
from epochal.trainers.sources.origin import with_origin
from epochal.trainers.sources.tokenizers import TOKENIZER_FILE, check_identity, check_tokenizer

log = logging.getLogger(__name__)

GENESIS_DOMAIN = b"epochal/genesis/v1\x00"
KEPT_LAYOUTS = 4
POSITION_KEYS = ("max_position_embeddings", "n_positions")
"""Keys of Hugging Face configs for the number of positions that a model knows."""


def model_layout(spec: ModelSpec) -> TensorLayout:
    """Return the names and shapes of the parameters of a model.

    Raises:
        InvalidInput: its config is not valid.
        Unsupported: this version does not train the architecture, or not with what is installed.
    """
    return _layout_in(model_document(spec))


@lru_cache(KEPT_LAYOUTS)  # every checkpoint is compared with it, and a large model takes seconds to lay out
def _layout_in(document: bytes) -> TensorLayout:
    spec = parse_document(ModelSpec, document)
    return TensorLayout(tuple(sorted(open_model(spec).shapes.items())))


def make_first_model(
    state: StateFile, step: int, seed: int | None = None, source: ModelSource | None = None
) -> FirstModel:
    """Return the model that the run starts from: the same for the same arguments, on every machine.

    Parameters of a source are read while they are asked for: that raises the same errors, for values that are wrong.

    Args:
        state: the run's state file; its `checkpoint` says where the parameters come from.
        step: number of the replica; 0 for a run that starts from its beginning.
        seed: of parameters that are made; None derives one from the run's id.
        source: in place of the one that the state file names.

    Raises:
        InvalidInput: the source does not hold a model of the run from which it can start; the user's fault.
        ModelUnavailable: it does not answer now.
        Unsupported: this version does not train the architecture, or not with what is installed.
        TrainerFailed: the parameters do not fit into this machine's memory.
    """
    llm = state.model.LLM
    if source is None and not llm.is_made_from_seed:
        source = open_source(llm.checkpoint)
    if source is None:
        check_config(state, llm.spec)
        model, key = open_model(llm.spec), _seed_bytes(state.run_id if seed is None else f"{seed}")
        if isinstance(model, ModelInParts):
            layout = model_layout(llm.spec)
            make = partial(_counted, "making the first parameters", layout, partial(model.initial_parts, key))
            return FirstModel(llm.spec, step, layout, make, state.merge.has_momentum)
        parameters = model.initial_parameters(key)
        return FirstModel.of(llm.spec, first_replica(step, parameters, state.merge.has_momentum))
    if llm.adapter is not None:
        return _first_adapter(state, step, seed, source)
    if seed is not None:
        raise InvalidInput(f"a seed does not go with {source.place}: the parameters are read from there")
    spec = _completed(llm.spec, source)
    check_config(state, spec)
    _check_tokenizer(spec, source)
    layout = model_layout(spec)
    source.tensors(dict(layout.entries))  # names and shapes are wrong now rather than in the midst of a start
    read = partial(_checked_parameters, source, layout, state.merge.max_abs)
    counted = partial(_counted, "reading the first parameters", layout, read)
    return FirstModel(spec, step, layout, counted, state.merge.has_momentum)


def _first_adapter(state: StateFile, step: int, seed: int | None, source: ModelSource) -> FirstModel:
    """Return the adapter with which a run starts, beside the base at the source. Raises as `make_first_model`."""
    spec = _completed(state.model.LLM.spec, source)
    check_config(state, spec)
    _check_tokenizer(spec, source)
    for name, data in source.tokenizer_files():
        if name == TOKENIZER_FILE:
            check_identity(data, source.place, state.model.LLM.tokenizer, "another base")
    if not isinstance(source, FolderSource):
        raise InvalidInput(f"{source.place}: an adapter's base is a repository or a folder", place=source.place)
    model = open_model(spec)
    from epochal.trainers.torch.adapters import AdapterModel  # what `open_model` has found to be importable

    assert isinstance(model, AdapterModel)
    if source.origin() is None:
        source.tensors(model.whole.shapes)  # names and shapes are wrong now; a repository's would be downloaded for it
    parameters = model.first_parameters(_seed_bytes(state.run_id if seed is None else f"{seed}"), source)
    spec = spec.model_copy(update={"base": source.weight_files()})
    return FirstModel.of(spec, first_replica(step, parameters, state.merge.has_momentum))


def _counted(
    title: str, layout: TensorLayout, read: Callable[[], Iterable[tuple[str, Float32Array]]]
) -> Iterator[tuple[str, Float32Array]]:
    """Yield parameters as they are read or made, counted as long work."""
    with long_work(title, layout.size_bytes, BYTES) as work:
        for name, values in read():
            yield name, values
            work.advance(values.nbytes)


def _checked_parameters(
    source: ModelSource, layout: TensorLayout, max_abs: float
) -> Iterator[tuple[str, Float32Array]]:
    """Yield a source's parameters, each read when it is asked for. Raise `InvalidInput` if one's values are wrong."""
    for name, values in source.tensors(dict(layout.entries)):
        try:
            check_first_parameter(name, values, max_abs)
        except InvalidDocument as error:
            raise InvalidInput(f"{source.place}: {error.message}", place=source.place) from error
        yield name, values


def look_at_source(state: StateFile) -> ModelSpec:
    """Return the spec of the model at the state file's `checkpoint`, without reading its parameters.

    Raises:
        InvalidInput, ModelUnavailable, Unsupported: as `make_first_model` does.
    """
    llm = state.model.LLM
    source = open_source(llm.checkpoint)
    spec = _completed(llm.spec, source)
    check_config(state, spec)
    _check_tokenizer(spec, source)
    if spec.architecture not in HF_ARCHITECTURES:
        source.tensors(dict(model_layout(spec).entries))
    return spec


def check_config(state: StateFile, spec: ModelSpec) -> None:
    """Raise `InvalidInput` if the state file's config of the model is not what its author meant.

    That is: the run's samples are longer than the model's positions, or keys are misspelt. Raise `Unsupported` if the
    model's work cannot be repeated, and is to be.

    Args:
        state: the run's state file.
        spec: its model, complete.
    """
    if state.model.LLM.hf is not None and is_of_transformers(spec):
        from epochal.trainers.torch.config_keys import check_keys

        check_keys(state.model.LLM.hf, "the state file")
    config = (spec.hf or {}).get("text_config") or spec.hf or {}
    for key in POSITION_KEYS:
        longest = config.get(key) if isinstance(config, dict) else None
        if type(longest) is int and state.model.LLM.max_seq_len > longest:
            raise InvalidInput(
                f"model.LLM.max_seq_len is {state.model.LLM.max_seq_len}; the model's config has {key} = {longest}, so "
                f"allowed: at most {longest}"
            )
    if state.is_replayed:
        check_repeatable(state, spec)


def _check_tokenizer(spec: ModelSpec, source: ModelSource) -> None:
    """Raise `InvalidInput` if the tokenizer beside a model of transformers is another model's."""
    if spec.architecture in HF_ARCHITECTURES and not spec.dummy:
        vocabulary = open_model(spec).vocabulary
        if vocabulary is not None:
            check_tokenizer(source, vocabulary)


def _completed(spec: ModelSpec, source: ModelSource) -> ModelSpec:
    """Return the spec, completed by the config of the source."""
    if spec.is_complete:
        return spec
    config = with_origin(source.config(), source.origin())
    try:
        return ModelSpec.model_validate({**dict(spec), "hf": config})
    except ValidationError as error:
        allowed = ModelSpec.model_fields["hf"].description
        raise InvalidInput(
            f"{source.place}: its config.json is not the config of a model; allowed: {allowed}", place=source.place
        ) from error


def check_first_step(state: StateFile, replica: Replica) -> None:
    """Raise `InvalidDocument` if clients cannot train on the replica of a run's first checkpoint: its values.

    Later values follow from results, which are bounded.
    """
    if replica.step == 0:
        with _blaming_the_coordinator(replica):
            check_first_values(replica, state.merge.max_abs)


def check_trainable(spec: ModelSpec, replica: Replica) -> None:
    """Raise `InvalidDocument` unless a run's replica holds the parameters of the run's model, which is opened."""
    with _blaming_the_coordinator(replica):
        check_layout(replica.layout, model_layout(spec))


@contextmanager
def _blaming_the_coordinator(replica: Replica) -> Iterator[None]:
    try:
        yield
    except InvalidDocument as error:
        message = f"nobody can train on the model of step {replica.step} that the coordinator serves: it is"
        raise InvalidDocument(f"{message} {error.message}. Tell the run's operator", **error.context) from error


def _seed_bytes(text: str) -> bytes:
    return hashlib.sha256(GENESIS_DOMAIN + text.encode()).digest()
