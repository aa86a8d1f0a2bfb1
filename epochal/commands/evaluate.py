"""`epochal evaluate`: the loss of a run's newest checkpoint on a split of data, encoded as the run encodes it."""

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from batching.packing.packed_batches import AssignedBatches, Packing
from batching.round_plan import RoundPlan
from coordinator.machine.records import replay
from coordinator.store.open import StoreReader, open_store_reader
from data_providers.fetcher import DataFetcher, FetchSettings
from data_providers.opening import ONLY_FOR_MEMBERS, OpenOptions, open_location, run_data
from epochal.cli.logs import LogFormat, start_logging
from epochal.cli.options import JsonOption, StoreArgument
from epochal.cli.remote_code import TrustRemoteCodeOption, trust_code
from epochal.cli.run import run_to_end, say
from runtime.retry import system_jitter
from runtime.worker_thread import WorkerThread
from state.config.data_location import Preprocessed, Server, WeightedHttp
from state.config.model import DataType, ModelSpec
from state.config.state_file import StateFile
from state.errors import InvalidInput, StoreFailed
from state.intervals import BatchId
from state.replica import Replica, parse_checkpoint
from state.wire import sha256_hex
from trainers.architectures import open_model
from trainers.genesis import check_trainable
from trainers.learner_trainer import LearnerTrainer
from trainers.protocol import TrainedRound

DEFAULT_SPLIT = "validation"
SAMPLES_AT_A_TIME = 64
"""Samples whose loss is computed together."""


@dataclass(frozen=True, slots=True)
class RunModel:
    """A run's model as a checkpoint holds it: the run's state file, the model's spec, and the replica."""

    state: StateFile
    spec: ModelSpec
    replica: Replica


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The loss of a replica on some data.

    Attributes:
        split: the data's split; None where they have none.
        loss: in nats per predicted token; None if no token is predicted.
    """

    run_id: str
    step: int
    split: str | None
    samples: int
    tokens: int
    loss: float | None


def evaluate(
    store: StoreArgument,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION", help="Data to evaluate on, as `epochal client --data` takes it. Default: the run's."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of a folder of JSON lines or parquet files. Default: validation.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Number of samples to evaluate, from the first one on. Default: all.")
    ] = None,
    trust_remote_code: TrustRemoteCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compute the loss of a run's newest checkpoint. The run may continue meanwhile."""
    start_logging(LogFormat.TEXT, verbose=False)
    trust_code(trust_remote_code)

    async def main() -> None:
        found = await loss_of(await _newest_model(open_store_reader(store)), data, split, samples)
        if as_json:
            say(json.dumps(asdict(found)))
            return
        loss = "no token to predict" if found.loss is None else f"loss {found.loss:.4f} nats per token"
        of = "" if found.split is None else f", {found.split}"
        say(f"{found.run_id}, replica {found.step}: {loss} ({found.samples} samples, {found.tokens} tokens{of})")

    run_to_end(main())


async def loss_of(run: RunModel, data: str | None, split: str | None, samples: int | None) -> Evaluated:
    """Compute a replica's loss on one pass over a split.

    Args:
        run: the run, and the parameters to evaluate.
        data: a location in place of the run's; None for the run's own.
        split: None for "validation" where the data have splits.
        samples: maximum number of samples, from the first one on.

    Raises:
        InvalidInput: there is no such split, token files have none, or the data have no end and `samples` is None.
        DataError: the data cannot be read, or are not samples for this run.
    """
    state = run.state
    location, dataset = run_data(state, data)
    if isinstance(location, Server):
        raise InvalidInput(ONLY_FOR_MEMBERS)
    packs = state.model.LLM.data_type is DataType.FINETUNING
    if packs or isinstance(location, Preprocessed | WeightedHttp):
        split = split or DEFAULT_SPLIT
    elif split is not None:
        raise InvalidInput(f"--split {split}: these data have no splits; name others with --data")
    options = OpenOptions(state.run_id, None, packs=packs, split=split or DEFAULT_SPLIT)
    opening = open_location(location, dataset, options)
    worker = WorkerThread("epochal-evaluate")
    model = open_model(run.spec)
    async with (
        contextlib.aclosing(LearnerTrainer(model, None, False, worker)) as trainer,
        contextlib.aclosing(await opening) as provider,
    ):
        count = samples if provider.sequence_count is None else min(samples or 2**62, provider.sequence_count)
        if count is None:
            raise InvalidInput("these data have no end; say how many samples with --samples")
        assignment = (BatchId(0, count - 1),)
        packing = Packing.of(state, model.vocabulary, worker, split="validation" if split != "train" else "train")
        settings = FetchSettings.of(state, data_indices_per_batch=1)
        fetcher = DataFetcher(provider, settings, system_jitter, model.vocabulary)
        async with asyncio.TaskGroup() as group:
            batches: AssignedBatches = fetcher.fetch_data(assignment, group)
            if packing is not None:
                batches = packing.rows_of(assignment, batches)
            steps = -(-count // SAMPLES_AT_A_TIME)
            plan = RoundPlan(1, assignment, 1, (0.0,) * steps)
            trained: TrainedRound = await trainer.train(plan, run.replica.parameters, batches)
    return Evaluated(state.run_id, run.replica.step, split, count, trained.token_count, trained.loss)


async def _newest_model(store: StoreReader) -> RunModel:
    last = None
    async for segment in store.journal.history():
        last = segment
    if last is None:
        raise StoreFailed("the store holds no journal")
    run = replay(last).run
    if run.checkpoint is None:
        raise StoreFailed("the run has no checkpoint yet")
    data = await store.blobs.read(run.checkpoint.blob_sha256)
    if sha256_hex(data) != run.checkpoint.blob_sha256:
        raise StoreFailed(f"the blob of checkpoint {run.checkpoint.step} is damaged")
    replica, spec = parse_checkpoint(data), run.model or run.state_file.model.LLM.spec
    check_trainable(run.state_file, spec, replica)
    return RunModel(run.state_file, spec, replica)
