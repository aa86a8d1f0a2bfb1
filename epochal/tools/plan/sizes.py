"""The sizes that a plan needs: of a model's results and checkpoints, and of a sample."""

from collections.abc import Sequence

from epochal.runtime.merging.room_for_sums import sum_bytes
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.data_location import Http, Server, WeightedHttp
from epochal.state.config.model_table import LocalCheckpoint, ModelSpec
from epochal.state.config.schema import TokenSize
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.state.model.replica import checkpoint_size_bound
from epochal.state.model.tensors import TensorLayout
from epochal.state.round_model import ClientGroup, RoundModel, RunSizes
from epochal.state.shown.spool_room import REPLICAS_OF_A_ROUND, spool_bytes
from epochal.tools.model_size import FLOAT32_BYTES
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import MAX_PARAMETERS
from epochal.trainers.architectures import open_model
from epochal.trainers.first_parameters import look_at_source, model_layout
from epochal.trainers.torch.torch_options import BASE_BYTES

HEADER_BYTES = 500
"""About as many bytes of a result are its header (`state/results.py`)."""
MOST_TOKEN_BYTES = TokenSize.FOUR_BYTES.size_bytes
FEW_TOKENS = 2**16
"""Vocabularies up to this size have tokens of two bytes."""


def sizes_of(state: StateFile, parameter_count: int | None = None) -> RunSizes:
    """Return the sizes of a run. Its model is laid out, and takes no memory.

    Args:
        state: the run's state file.
        parameter_count: of the model, if it is known better than by its spec, or is not known by that.

    Raises:
        InvalidInput: the model's config is at its checkpoint, and no number of parameters is given.
        Unsupported: the model cannot be laid out with what is installed here.
    """
    merge, spec = state.merge, _known_spec(state)
    if parameter_count is not None:
        if not 1 <= parameter_count <= MAX_PARAMETERS:
            raise InvalidInput(f"a model of {parameter_count} parameters; allowed: 1 to {MAX_PARAMETERS}")
        layout = TensorLayout((("parameters", (parameter_count,)),))
    elif spec.is_complete:
        layout = model_layout(spec)
    else:
        raise InvalidInput(
            "the model's config lies at its checkpoint, which a plan does not read: say how many parameters the "
            "model has with --parameters, as in --parameters 124M"
        )
    batch_tokens = state.config.data_indices_per_batch * state.model.LLM.max_seq_len
    is_elsewhere = isinstance(state.model.LLM.data_location, Server | Http | WeightedHttp)
    checkpoint_bytes = checkpoint_size_bound(layout, has_momentum=merge.has_momentum)
    update_bytes = codec_named(merge.update_codec).encoded(layout).size_bytes + HEADER_BYTES
    return RunSizes(
        parameter_count=layout.size_bytes // FLOAT32_BYTES,
        result_bytes=codec_named(merge.codec_name).encoded(layout).size_bytes + HEADER_BYTES,
        update_bytes=update_bytes,
        checkpoint_bytes=checkpoint_bytes,
        tokens_per_batch=batch_tokens,
        data_bytes_per_batch=batch_tokens * _token_bytes(state) if is_elsewhere else 0,
        spool_bytes=spool_bytes(layout, state),
        scratch_bytes=sum_bytes(layout, merge.mean) + update_bytes + REPLICAS_OF_A_ROUND * checkpoint_bytes,
    )


def round_model(state: StateFile, groups: Sequence[ClientGroup], options: PlanOptions) -> RoundModel:
    """Return the model of a run's rounds with these clients. Raises as `sizes_of`."""
    return RoundModel(
        sizes=sizes_of(state, options.parameter_count),
        links=options.links,
        costs=options.costs,
        codec=state.merge.codec,
        update=state.merge.update_codec,
        through_store=state.blobs.store is not None,
        client_count=sum(group.count for group in groups),
    )


def base_sizes(state: StateFile) -> dict[str, int]:
    """Return the memory that an adapter's base takes at every client, in bytes by its precision; none without one."""
    spec = _known_spec(state)
    if spec.adapter is None or not spec.is_complete:
        return {}
    whole = open_model(spec.whole)
    from epochal.trainers.torch.frozen_base import base_bytes  # what `open_model` has found to be importable

    return {precision: base_bytes(whole.shapes, whole.vocabulary or 0, precision) for precision in BASE_BYTES}


def _known_spec(state: StateFile) -> ModelSpec:
    """Return the run's model; where it is an adapter of a base on this machine, with the base's config."""
    llm = state.model.LLM
    is_here = llm.adapter is not None and isinstance(llm.checkpoint, LocalCheckpoint)
    return look_at_source(state) if is_here and not llm.spec.is_complete else llm.spec


def _token_bytes(state: StateFile) -> int:
    """Return the size of a token as it travels: two bytes if the model's vocabulary is known to be small."""
    location = state.model.LLM.data_location
    if isinstance(location, Http):
        return location.token_size_in_bytes.size_bytes
    size = (state.model.LLM.spec.hf or {}).get("vocab_size")
    return TokenSize.TWO_BYTES.size_bytes if isinstance(size, int) and size <= FEW_TOKENS else MOST_TOKEN_BYTES
