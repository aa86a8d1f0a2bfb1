"""`state.toml` and `data.toml` as checked, frozen models (docs/state-file.md lists every field).

`parse_state` also reads the files of Psyche's coordinator; Epochal's additions are optional and have defaults.
`state/config/support.py` then refuses valid files that ask for something that this version does not support.
`parse_state(dump_state(state)) == state`, so that the coordinator can rewrite the file at phase changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeAlias

import tomli_w
from pydantic import AfterValidator, Field, ValidationError, model_validator

from epochal.state.checkpoint_parts import MAX_PART_BYTES, MIN_PART_BYTES
from epochal.state.config.blob_place import OptionalBlobPlace, Origins
from epochal.state.config.data_location import WeightedHttp
from epochal.state.config.mistakes import WrongPlaces, broken_rules, mistakes_in, parse_file, show
from epochal.state.config.model_table import LlmConfig
from epochal.state.config.notify_table import NotifyConfig
from epochal.state.config.planned_changes import AT_A_ROUND, MAX_CHANGES, PlannedChange, may_change, with_values
from epochal.state.config.rules import RULES
from epochal.state.config.schema import Duration, HexDigest, Natural, Positive, Section, known_places
from epochal.state.config.verify_table import STATES_BEYOND, VerifyConfig, with_psyches_percent
from epochal.state.errors import InternalError, Mistake
from epochal.state.intervals import DataIds
from epochal.state.phase_names import RunState
from epochal.state.share_ceiling import PARTS

MAX_RUN_ID_BYTES = 32
MAX_ACCESS_ENTRIES = 100_000
MAX_LOCAL_STEPS = 10_000
MAX_FETCH_ATTEMPTS = 100
MAX_PREFETCH_REQUESTS = 64
MAX_POOL_SIZE = 65_536
MAX_SPARSE_KEEP = 4096
ROUNDED_TO_0, ROUNDED_TO_1 = 2.0**-150, 1 - 2.0**-25
"""The largest number that is 0 as float32, and the least that is 1."""
MAX_NORM_LIMIT = 1000.0
MAX_UPDATE_WAIT_S = 86_400.0
DEFAULT_BLOBS_BYTES = 4 * 1024**3
MAX_CHECKER_WAIT_S = 3600
DEFAULT_AHEAD_BYTES = 64 * 1024**2
MAX_AHEAD_BYTES = 2**40


def _check_run_id(run_id: str) -> str:
    if not 1 <= len(run_id.encode()) <= MAX_RUN_ID_BYTES:
        raise ValueError("not 1 to 32 bytes")
    return run_id


RunId = Annotated[str, AfterValidator(_check_run_id), Field(description="a string of 1 to 32 bytes (UTF-8)")]
LaterMixes: TypeAlias = tuple[tuple[int, Mapping[str, float]], ...]
AccessEntries = Annotated[tuple[HexDigest, ...], Field(strict=False, max_length=MAX_ACCESS_ENTRIES)]


class RunConfig(Section):
    """`[config]`: timers, numbers of clients and the size of a round. Times are upper bounds, in seconds.

    Attributes:
        witness_nodes: number of witnesses; 0 elects every client.
        global_batch_size_start, global_batch_size_end: batches of a round, before and after the warm-up.
        global_batch_size_warmup_tokens: tokens over which the size grows; 0 for no warm-up.
        total_steps: rounds of the run.
        verification_percent: is read as `verify.percent`.
        data_indices_per_batch: data indices of one batch. Epochal's addition.
        client_timeout_s: a client silent for longer is not in the next roster. Epochal's addition.
        on_bad_data: whether a batch on which three clients failed is recorded and skipped, or pauses the run. Epochal's
            addition.
        data_fingerprint: of the data that every client must have (`epochal data inspect` shows it). Epochal's addition.
        checkpoint_every: number of rounds after which a checkpoint is made while rounds go on; 0 for none but that of
            each epoch. Epochal's addition.
        max_share: the largest part of a round's work, and of a merge, for one client; 1 for no ceiling, no such line
            for a quarter, or twice the median client's part among fewer than eight. Epochal's addition.
    """

    warmup_time: Duration
    cooldown_time: Duration
    epoch_time: Duration
    max_round_train_time: Duration
    round_witness_time: Duration
    waiting_for_members_extra_time: Duration
    min_clients: Positive
    init_min_clients: Positive
    witness_nodes: Natural
    global_batch_size_start: Positive
    global_batch_size_end: Positive
    global_batch_size_warmup_tokens: Natural
    total_steps: Positive
    verification_percent: Annotated[int, Field(ge=0, le=100)] = 0
    data_indices_per_batch: Positive = 1
    client_timeout_s: Duration = 30.0
    on_bad_data: Literal["quarantine", "stop"] = "quarantine"
    data_fingerprint: Annotated[
        HexDigest | None, Field(description="the 64 lowercase hex characters that `epochal data inspect` shows")
    ] = None
    checkpoint_every: Natural = 0
    max_share: Annotated[float | None, Field(gt=0, le=1, description="a number above 0, at most 1")] = None

    @property
    def ceiling(self) -> int | None:
        """The largest part in millionths, as rosters have it; None for the default."""
        return None if self.max_share is None else max(1, round(self.max_share * PARTS))


class Progress(Section):
    """`[progress]`: the run's progress. The coordinator rewrites these lines at phase changes.

    Attributes:
        epoch: number of earlier epochs.
        step: the next round to be applied, from 1.
        epoch_start_data_index: the first data index of the epoch, a multiple of the data indices of a batch.
    """

    epoch: Natural = 0
    step: Positive = 1
    epoch_start_data_index: Natural = 0


class ModelConfig(Section):
    """`[model]`: the kind of model; there is one kind."""

    LLM: LlmConfig


class Access(Section):
    """`[access]`: who may join, and who makes the model that the run starts from.

    Attributes:
        mode: anyone, the owners of `keys`, or clients with the code of one of `invitations`.
        keys: raw Ed25519 public keys, lowercase hex.
        invitations: SHA-256 digests of invitation codes, lowercase hex.
        genesis: who makes the first checkpoint: the operator, or an elected member, which needs trusted members.
        dashboard: who may read the run's history and news: anyone, members and the operator, or the operator.
    """

    mode: Literal["open", "keys", "invitations"] = "open"
    keys: Annotated[
        AccessEntries, Field(description="a list of Ed25519 public keys, each 64 lowercase hex characters")
    ] = ()
    invitations: Annotated[
        AccessEntries,
        Field(description="a list of SHA-256 digests of invitation codes, each 64 lowercase hex characters"),
    ] = ()
    genesis: Literal["operator", "members"] = "operator"
    dashboard: Literal["public", "members", "admin"] = "public"


class MergeConfig(Section):
    """`[merge]`: DiLoCo (Douillard and others, 2023): local steps, and the outer Nesterov step.

    Attributes:
        local_steps: optimizer steps of a client in one round.
        outer_lr, outer_momentum: of the outer step, applied to the averaged difference.
        inner_state: whether a client keeps its optimizer's state from round to round.
        max_abs: the largest magnitude allowed in a result.
        codec: how results are encoded (`docs/merging.md`).
        sparse_keep: of the codec `sparse`: values sent of every 4096.
        error_feedback: whether a client adds what its codec left out to its next difference.
        error_feedback_decay: the factor of what was left out, each time.
        mean: of the differences: over all, or for each element over those that sent it.
        norm_limit: multiple of the usual length of results from which longer ones count for as much less; 0 for none.
        update: how a round's mean is encoded, once for all members.
        update_wait_s: seconds for which a client waits for that, before it makes it itself of the round's results.
        delay: 1 if a round's training begins before the round, from the client's own last result; 0 if it does not.
    """

    local_steps: Annotated[int, Field(ge=1, le=MAX_LOCAL_STEPS)] = 8
    outer_lr: Annotated[
        float, Field(gt=ROUNDED_TO_0, le=1000, description="a number above 0, also as float32, at most 1000")
    ] = 0.7
    outer_momentum: Annotated[
        float, Field(ge=0, lt=ROUNDED_TO_1, description="a number from 0 to below 1, also as float32")
    ] = 0.8
    inner_state: Literal["keep", "reset"] = "keep"
    max_abs: Annotated[float, Field(gt=0, le=1e30, description="a number above 0, at most 1e30")] = 1e4
    codec: Literal["float32", "int8", "int4", "int2", "sparse"] = "int4"
    sparse_keep: Annotated[int, Field(ge=1, le=MAX_SPARSE_KEEP)] = 64
    error_feedback: bool = False
    error_feedback_decay: Annotated[float, Field(gt=0, le=1, description="a number above 0, at most 1")] = 0.95
    mean: Literal["all", "senders"] = "all"
    norm_limit: Annotated[float, Field(ge=0, le=MAX_NORM_LIMIT)] = 1.5
    update: Literal["int4", "int8", "exact"] = "int4"
    update_wait_s: Annotated[float, Field(ge=0, le=MAX_UPDATE_WAIT_S)] = 120.0
    delay: Annotated[int, Field(ge=0, le=1, description="0 or 1")] = 0

    @property
    def has_momentum(self) -> bool:
        """Whether replicas have outer momentum; a run without leaves it out of memory, digests and checkpoints."""
        return self.outer_momentum > 0

    @property
    def codec_name(self) -> str:
        """Name of the codec in a result's metadata (`state/codecs/codecs_by_name.py`)."""
        return f"sparse-{self.sparse_keep}" if self.codec == "sparse" else self.codec

    @property
    def update_codec(self) -> str:
        """Name of the codec of updates."""
        return "float32" if self.update == "exact" else self.update


class ClientConfig(Section):
    """`[client]`: how clients fetch their data, and how much room their temporary files have.

    Attributes:
        fetch_attempts: attempts at one request before the step fails.
        fetch_timeout_s: seconds for one attempt.
        prefetch_requests: maximum number of answers that wait for the trainer.
        spool_bytes: maximum size of a client's temporary files; no such line: what its disk holds. Epochal's addition.
        ahead_bytes: maximum size of the samples that a client fetches ahead of their round; 0 fetches none. Epochal's
            addition.
    """

    fetch_attempts: Annotated[int, Field(ge=1, le=MAX_FETCH_ATTEMPTS)] = 6
    fetch_timeout_s: Duration = 30.0
    prefetch_requests: Annotated[int, Field(ge=1, le=MAX_PREFETCH_REQUESTS)] = 2
    spool_bytes: Annotated[int | None, Field(ge=1, description="a positive integer, or no such line")] = None
    ahead_bytes: Annotated[int, Field(ge=0, le=MAX_AHEAD_BYTES)] = DEFAULT_AHEAD_BYTES


TaskEncoderName = Annotated[
    str | None,
    Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$",
        description='the name under which a package registers it in the entry points "epochal.task_encoders" (not '
        "module:Class), or no such line",
    ),
]


class PackingConfig(Section):
    """`[packing]`: how samples of different lengths become rows, if `model.LLM.data_type` is "Finetuning".

    Attributes:
        method: `rolling` keeps samples that do not fit for a later row; `padded` gives each sample a row of its own;
            `encoder` calls the task encoder's `slice_batch`.
        pool_size: number of samples from which a row's are chosen; no sample waits for more rows than that.
        oversized: what to do with a sample that is longer than a row.
        max_failed_samples: number of samples of an assignment that may fail in the encoder; one more fails the step.
        task_encoder: the entry point of a `TaskEncoder`, whose package every client must have and allow.
    """

    method: Literal["rolling", "padded", "encoder"] = "rolling"
    pool_size: Annotated[int, Field(ge=1, le=MAX_POOL_SIZE)] = 256
    oversized: Literal["error", "truncate", "split", "drop"] = "error"
    max_failed_samples: Natural = 0
    task_encoder: TaskEncoderName = None


class BlobsConfig(Section):
    """`[blobs]`: where results and checkpoints are kept, and how many bytes of them.

    Attributes:
        max_total_bytes: maximum size of all results and checkpoints.
        store: an object store that holds them; no such line: the coordinator's store does.
        origins: scheme, host and port of the URLs under which clients find the object store, and to which alone they
            deliver; no such line: as `store` says. Epochal's addition.
        part_bytes: maximum size of a checkpoint's part. Epochal's addition.
        checker_wait_s: seconds within which a checker (`epochal checker`), if there is any, must take a result that
            arrived in an object store; then the coordinator checks it itself. 0: it always does.
    """

    max_total_bytes: Positive = DEFAULT_BLOBS_BYTES
    store: OptionalBlobPlace = None
    origins: Origins = ()
    part_bytes: Annotated[int, Field(ge=MIN_PART_BYTES, le=MAX_PART_BYTES)] = MAX_PART_BYTES
    checker_wait_s: Annotated[float, Field(ge=0, le=MAX_CHECKER_WAIT_S)] = 10.0


class RunTable(Section):
    """`[run]`: what the coordinator keeps of the run's past. Epochal's addition.

    Attributes:
        keep_journal: all of it, or, for what is older than the oldest kept checkpoint, a proof of what was applied.
    """

    keep_journal: Literal["all", "compact"] = "all"


class StateFile(Section):
    """A `state.toml`: the description of a run. Every instance keeps the rules of `docs/state-file.md`."""

    run_id: RunId
    run_state: Annotated[RunState, Field(strict=False)] = RunState.WAITING_FOR_MEMBERS
    config: RunConfig
    progress: Progress = Progress()
    model: ModelConfig
    access: Access = Access()
    merge: MergeConfig = MergeConfig()
    client: ClientConfig = ClientConfig()
    blobs: BlobsConfig = BlobsConfig()
    packing: PackingConfig = PackingConfig()
    run: RunTable = RunTable()
    notify: NotifyConfig = NotifyConfig()
    verify: VerifyConfig | None = None
    changes: Annotated[tuple[PlannedChange, ...], Field(strict=False, max_length=MAX_CHANGES)] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_psyches_percent(cls, tree: Any) -> Any:
        return with_psyches_percent(tree)

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        broken = broken_rules(known_places(StateFile), RULES, self.to_plain(), ())
        if broken:
            raise ValueError("; ".join(map(str, broken)))
        wrong = tuple(_wrong_changes(self)) if self.changes else ()
        if wrong:
            raise WrongPlaces(wrong)
        return self

    def at(self, step: int) -> "StateFile":
        """Return the file as the rounds of a step follow it: itself, or one without changes."""
        due = [change for change in self.changes if change.at_step <= step]
        if not due:
            return self
        values = (pair for change in due for pair in change.values.items())
        return StateFile.model_validate(with_values(self.to_plain(), values) | {"changes": ()})

    @property
    def is_replayed(self) -> bool:
        """Whether verifiers compute results again."""
        return self.verify is not None and self.verify.by == "replays"

    @property
    def reveals_inner_states(self) -> bool:
        """Whether clients commit to the inner states that they keep, so that their results can be computed again."""
        return self.is_replayed and self.merge.inner_state == "keep"

    @property
    def held_inner_states(self) -> int:
        """Maximum number of inner states on a client's disk, with one that is being written; 0 without any."""
        return self.verify.within + STATES_BEYOND + 1 if self.verify is not None and self.reveals_inner_states else 0

    @property
    def later_mixes(self) -> LaterMixes:
        """The weights of the mix from a data index on, as far as it is known from which."""
        size = self.config.data_indices_per_batch
        found = {
            change.first_batch * size: change.mix
            for change in self.changes
            if change.mix is not None and change.first_batch is not None
        }
        return tuple(sorted(found.items(), key=lambda pair: pair[0]))

    @property
    def first_batch(self) -> int:
        """The first batch of the epoch."""
        index = self.progress.epoch_start_data_index
        return DataIds(index, index).to_batches(self.config.data_indices_per_batch).start

    def to_plain(self) -> dict[str, Any]:
        """Return the file as plain JSON values, with every default; None for a missing line."""
        return self.model_dump(mode="json")

    def with_progress(self, run_state: RunState, progress: Progress) -> "StateFile":
        """Return the same description at another phase and progress; `InternalError` if the progress breaks a rule."""
        try:
            return StateFile.model_validate({**dict(self), "run_state": run_state, "progress": progress})
        except ValidationError as error:
            raise InternalError(f"a progress that breaks the state file's rules: {error}") from error


def _wrong_changes(state: StateFile) -> Iterator[Mistake]:
    """Yield what is wrong with the changes of a file that is right without them, each at its place."""
    plain, step = state.to_plain() | {"changes": ()}, 0
    for number, change in enumerate(state.changes):
        place = f"changes.{number}"
        if change.at_step <= step:
            yield Mistake(f"{place}.at_step", show(change.at_step), f"above {step}, the step of the change before")
        if not change.values and change.mix is None:
            yield Mistake(f"{place}.values", "without a change", "`values`, `mix`, or both")
        if change.mix is not None:
            yield from _wrong_mix(state, change, place)
        refused = [path for path in change.values if not may_change(path)]
        if refused:
            yield Mistake(f"{place}.values", ", ".join(refused), f"fields that may change: {', '.join(AT_A_ROUND)}")
        changed = with_values(plain, (pair for pair in change.values.items() if pair[0] not in refused))
        wrong, step = mistakes_in(StateFile, RULES, changed), change.at_step
        yield from (replace(one, path=f"{place}.values.{one.path}") for one in wrong)
        if wrong:
            continue
        plain, momentum = changed, changed["merge"]["outer_momentum"]
        if (momentum > 0) is not state.merge.has_momentum:
            kept = "above 0" if state.merge.has_momentum else "0"
            why = f"{kept}, as at the run's start: replicas have momentum from the first on, or never"
            yield Mistake(f"{place}.values.merge.outer_momentum", show(momentum), why)


def _wrong_mix(state: StateFile, change: PlannedChange, place: str) -> Iterator[Mistake]:
    location, weights = state.model.LLM.data_location, change.mix or {}
    if not isinstance(location, WeightedHttp):
        found = f"{{ {location.variant} = … }}"
        why = f"no such table where model.LLM.data_location is {found}: a mix that clients read (`WeightedHttp`) has it"
        yield Mistake(f"{place}.mix", show(weights), why)
    if not any(weights.values()):
        yield Mistake(f"{place}.mix", show(weights), "at least one weight above 0")


def parse_state(text: str, source: str) -> StateFile:
    """Parse and validate a `state.toml`.

    Args:
        text: the whole file.
        source: the file's name, for messages.

    Raises:
        InvalidConfig: the file is wrong; `mistakes` holds every mistake. The fault of the file's author.
    """
    return parse_file(StateFile, RULES, text, source)


def dump_state(state: StateFile) -> str:
    """Return a `state.toml` that parses to an equal `StateFile`.

    It writes out every default, so that a later version with other defaults continues the run as it began.
    """
    return tomli_w.dumps(_without_none(state.to_plain()))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
