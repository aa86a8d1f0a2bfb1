"""Replays of a stored run's kept results, by anybody: `epochal audit --recompute --retrain N`.

The results are drawn afresh each time, so that nobody can know before which ones anybody will compute again. Each
replica on the way is recomputed from the older kept checkpoint, and compared with the digest on which the run agreed.
"""

import contextlib
import heapq
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from epochal.coordinator.machine.replays.tolerances import distances_key, tolerance_of
from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.backup import last_of
from epochal.coordinator.proof.recompute import blob_of, replicas
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.store import StoreReader
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.runtime.long_work import long_work
from epochal.state.config.support import unrepeatable
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import DataError, InvalidConfig, InvalidInput, Mistake, StoreFailed, TrainerFailed
from epochal.state.messages.state_messages import StateBlob
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256, sha256_hex
from epochal.tools.replays.replay import Replays, RevealedFiles, WorkOfRound, no_ticket, opened_replays
from epochal.trainers.architectures import check_repeatable


@dataclass(frozen=True, slots=True)
class StoredReplay:
    """A kept result, computed again.

    Attributes:
        excess, norm_ratio, cosine: as `ReplayDistance`.
        tolerance: up to which an excess distance passes in this run now.
        result_class, replay_class: precision and device of each.
        state_excess, state_tolerance: of the inner state with which the work ended; None where it is not kept.
        obstacle: why it could not be computed; "" if it was. Then the figures mean nothing.
    """

    step: int
    client_id: str
    excess: float = 0.0
    tolerance: float = 0.0
    norm_ratio: float = 0.0
    cosine: float = 0.0
    result_class: str = ""
    replay_class: str = ""
    state_excess: float | None = None
    state_tolerance: float = 0.0
    obstacle: str = ""

    @property
    def passes(self) -> bool:
        """Whether it was computed, and it and its inner state are within their tolerances."""
        is_true = self.state_excess is None or self.state_excess <= self.state_tolerance
        return not self.obstacle and self.excess <= self.tolerance and is_true


@dataclass(frozen=True, slots=True)
class StoredReplays:
    """Kept results, computed again.

    Attributes:
        replays: those that were drawn.
        computable_count: the kept results that can be computed again, of which those were drawn.
        kept_count: all results since the older kept checkpoint.
    """

    replays: tuple[StoredReplay, ...]
    computable_count: int
    kept_count: int


@dataclass(frozen=True, slots=True)
class _Computable:
    """A stored run, opened to compute results again; its kept outcomes, and the results that can be computed."""

    run: Run
    replays: Replays
    kept: list[Outcome]
    possible: list[tuple[int, OutcomeEntry]]


async def check_stored(url: str, dependencies: ClientDependencies) -> None:
    """Open what computes a stored run's results again, and close it. Raises as `replay_stored`, before it computes."""
    async with _opened(open_store_reader(url), dependencies):
        pass


async def replay_stored(url: str, count: int, dependencies: ClientDependencies, seed: int) -> StoredReplays:
    """Compute `count` random results of a stored run's kept rounds again, or all if there are fewer.

    They are drawn among those that can be computed: where clients keep inner states, those whose states are kept.

    Args:
        url: the store, which may be a published folder.
        count: number of results.
        dependencies: open data and trainer, as a client's do.
        seed: draws the results.

    Raises:
        StoreFailed: the run cannot be read, or its kept results lead to another replica than was attested.
        InvalidInput, Unsupported: the run cannot be computed here, or, as its lines or missing states say, nowhere.
    """
    store = open_store_reader(url)
    found: list[StoredReplay] = []
    async with _opened(store, dependencies) as opened:
        run, drawn = opened.run, _drawn(opened.possible, count, seed)
        with long_work("computing results again", sum(map(len, drawn.values())), "results") as work:
            async for replica, _ in replicas(run, store.blobs):
                step = replica.step + 1
                if step not in drawn:
                    continue
                if replica_digest(replica) != run.models.outcomes[step].replica_digest:
                    raise StoreFailed(f"replica {replica.step} recomputes to another digest than was attested")
                for entry in drawn[step]:
                    data = await blob_of(store.blobs, Sha256(entry.result_sha256))
                    states = await _revealed(run, store, step, entry)
                    found.append(await _compared(run, opened.replays, entry, replica, (data, states)))
                    work.advance()
    return StoredReplays(tuple(found), len(opened.possible), sum(len(outcome.entries) for outcome in opened.kept))


@contextlib.asynccontextmanager
async def _opened(store: StoreReader, dependencies: ClientDependencies) -> AsyncIterator[_Computable]:
    async with store.place.copying():
        run = (await last_of(store)).run
        models = run.models
        if models.spec is None or not models.checkpoints:
            raise StoreFailed(f"{store.name} has no checkpoint: there is nothing to compute again")
        state = run.identity.state_file
        check_repeatable(state, models.spec)
        kept = [outcome for step, outcome in models.outcomes.items() if step > models.checkpoints[0].step]
        possible = list(computable(run, kept, store.name))
        async with opened_replays(RunAccess(state, models.spec, no_ticket), dependencies) as replays:
            replays.check_data(run.data.fingerprint)
            yield _Computable(run, replays, kept, possible)


def computable(run: Run, kept: list[Outcome], name: str) -> Iterator[tuple[int, OutcomeEntry]]:
    """Yield the results of outcomes that can be computed again, each with its step.

    Raises:
        InvalidInput: there are results, and none can be; with the lines of the state file (in the store `name`) that
            are why.
    """
    mistakes: dict[Mistake, None] = {}
    found = False
    for outcome in kept:
        at_step = run.identity.state_file.at(outcome.step)
        wrong = () if run.models.spec is None else tuple(unrepeatable(at_step, run.models.spec))
        mistakes |= dict.fromkeys(wrong)
        for entry in () if wrong else outcome.entries:
            if not at_step.reveals_inner_states or _states_of(run, outcome.step, entry) is not None:
                found = True
                yield outcome.step, entry
    if found or not kept:
        return
    if mistakes:
        raise InvalidConfig(f"the state file of {name}, whose results nobody can compute again", tuple(mistakes))
    raise InvalidInput(
        f"{name} keeps no inner state of the rounds since the older kept checkpoint, and its clients begin with those "
        "that they keep; allowed: a copy from a time when replays are open or have just passed"
    )


def _drawn(possible: Iterable[tuple[int, OutcomeEntry]], count: int, seed: int) -> dict[int, list[OutcomeEntry]]:
    """Return entries of outcomes by step: those of the smallest digests of seed, step and client."""

    def place(found: tuple[int, OutcomeEntry]) -> str:
        return sha256_hex(f"{seed}/{found[0]}/{found[1].client_id}".encode())

    drawn: dict[int, list[OutcomeEntry]] = {}
    for step, entry in heapq.nsmallest(count, possible, key=place):
        drawn.setdefault(step, []).append(entry)
    return drawn


def _states_of(run: Run, step: int, entry: OutcomeEntry) -> tuple[StateBlob | None, StateBlob | None] | None:
    """Return the inner states with which a client's round began and ended, as far as they are kept.

    The first is None if the round began fresh, the second if it is not kept. None if the first is not kept.
    """
    for one in run.members.verification.kept():
        if (one.step, one.client_id) == (step, entry.client_id) and one.states is not None:
            begin, end = one.states.begin, one.states.end
            if begin not in one.awaited:
                return begin, None if end in one.awaited else end
    counted = run.members.trust_of(entry.client_id).counted
    is_fresh = counted is not None and counted.step == step and counted.states.begin is None
    return (None, None) if is_fresh else None


async def _revealed(run: Run, store: StoreReader, step: int, entry: OutcomeEntry) -> RevealedFiles | None:
    """Return the kept inner states of a result that can be computed; None in a run whose clients reveal none."""
    states = _states_of(run, step, entry) if run.identity.state_file.at(step).reveals_inner_states else None
    if states is None:
        return None
    begin, end = [None if one is None else await blob_of(store.blobs, Sha256(one.sha256)) for one in states]
    return RevealedFiles(begin, end)


async def _compared(
    run: Run, replays: Replays, entry: OutcomeEntry, start: Replica, of_client: tuple[Buffer, RevealedFiles | None]
) -> StoredReplay:
    step = start.step + 1
    work = WorkOfRound(step, entry.assignment, run.models.cold_start_step)
    try:
        found = await replays.replay(work, start, *of_client)
    except (DataError, TrainerFailed, InvalidInput) as error:
        return StoredReplay(step, entry.client_id, obstacle=error.message)
    far, classes = found.distance, (found.result_class, found.replay_class)
    local_steps, known = run.identity.state_file.at(step).merge.local_steps, run.members.verification.distances
    tolerance, of_states = [
        tolerance_of(known.get(distances_key(*classes, local_steps, of_states=of_states)))
        for of_states in (False, True)
    ]
    figures = far.excess, tolerance, far.norm_ratio, far.cosine, *classes
    return StoredReplay(step, entry.client_id, *figures, found.state_excess, of_states)
