"""Replays of a stored run's kept results, by anybody: `epochal audit --recompute --retrain N`.

The results are drawn afresh each time, so that nobody can know before which ones anybody will compute again. Each
replica on the way is recomputed from the older kept checkpoint, and compared with the digest on which the run agreed.
"""

import heapq
from dataclasses import dataclass

from epochal.coordinator.machine.replays.tolerances import distances_key, tolerance_of
from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.backup import last_of
from epochal.coordinator.proof.recompute import blob_of, replicas
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.store import StoreReader
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.runtime.long_work import long_work
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import DataError, InvalidInput, StoreFailed, TrainerFailed
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256, sha256_hex
from epochal.tools.replays.replay import Replays, RevealedFiles, WorkOfRound, no_ticket, opened_replays


@dataclass(frozen=True, slots=True)
class StoredReplay:
    """A kept result, computed again.

    Attributes:
        excess, norm_ratio, cosine: as `ReplayDistance`.
        tolerance: up to which an excess distance passes in this run now.
        result_class, replay_class: precision and device of each.
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
    obstacle: str = ""

    @property
    def passes(self) -> bool:
        """Whether it was computed, and is within its tolerance."""
        return not self.obstacle and self.excess <= self.tolerance


async def replay_stored(url: str, count: int, dependencies: ClientDependencies, seed: int) -> list[StoredReplay]:
    """Compute `count` random results of a stored run's kept rounds again, or all if there are fewer.

    Args:
        url: the store, which may be a published folder.
        count: number of results.
        dependencies: open data and trainer, as a client's do.
        seed: draws the results.

    Raises:
        StoreFailed: the run cannot be read, or its kept results lead to another replica than was attested.
        InvalidInput, Unsupported: the run cannot be computed here.
    """
    store = open_store_reader(url)
    async with store.place.copying():
        run = (await last_of(store)).run
        models = run.models
        if models.spec is None or not models.checkpoints:
            raise StoreFailed(f"{store.name} has no checkpoint: there is nothing to compute again")
        kept = [outcome for step, outcome in models.outcomes.items() if step > models.checkpoints[0].step]
        drawn = _drawn(kept, count, seed)
        access = RunAccess(run.identity.state_file, models.spec, no_ticket)
        found: list[StoredReplay] = []
        async with opened_replays(access, dependencies) as replays:
            replays.check_data(run.data.fingerprint)
            with long_work("computing results again", sum(map(len, drawn.values())), "results") as work:
                async for replica, _ in replicas(run, store.blobs):
                    step = replica.step + 1
                    if step not in drawn:
                        continue
                    if replica_digest(replica) != models.outcomes[step].replica_digest:
                        raise StoreFailed(f"replica {replica.step} recomputes to another digest than was attested")
                    for entry in drawn[step]:
                        data = await blob_of(store.blobs, Sha256(entry.result_sha256))
                        try:
                            states = await _revealed(run, store, step, entry)
                        except _Unrevealed as error:
                            found.append(StoredReplay(step, entry.client_id, obstacle=str(error)))
                        else:
                            found.append(await _compared(run, replays, entry, replica, (data, states)))
                        work.advance()
    return found


def _drawn(kept: list[Outcome], count: int, seed: int) -> dict[int, list[OutcomeEntry]]:
    """Return entries of outcomes by step: those of the smallest digests of seed, step and client."""

    def place(found: tuple[int, OutcomeEntry]) -> str:
        return sha256_hex(f"{seed}/{found[0]}/{found[1].client_id}".encode())

    entries = ((outcome.step, entry) for outcome in kept for entry in outcome.entries)
    drawn: dict[int, list[OutcomeEntry]] = {}
    for step, entry in heapq.nsmallest(count, entries, key=place):
        drawn.setdefault(step, []).append(entry)
    return drawn


class _Unrevealed(Exception):
    """Raised where the inner state with which a result's round began is not kept; never reaches a caller."""


async def _revealed(run: Run, store: StoreReader, step: int, entry: OutcomeEntry) -> RevealedFiles | None:
    """Return the inner states of a result that are kept; None in a run whose clients keep none.

    Raises:
        _Unrevealed: the result did not begin fresh, as far as is known, and its client was not asked for its states.
    """
    if not run.identity.state_file.at(step).reveals_inner_states:
        return None
    for one in run.members.verification.kept():
        if (one.step, one.client_id) == (step, entry.client_id) and one.states is not None and not one.awaited:
            begin, end = one.states.begin, one.states.end
            began = None if begin is None else await blob_of(store.blobs, Sha256(begin.sha256))
            return RevealedFiles(began, await blob_of(store.blobs, Sha256(end.sha256)))
    counted = run.members.trust_of(entry.client_id).counted
    if counted is not None and counted.step == step and counted.states.begin is None:
        return RevealedFiles(None, None)
    raise _Unrevealed("its client keeps its inner state, and no state of this round is kept in the run's store")


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
    local_steps = run.identity.state_file.at(step).merge.local_steps
    known = run.members.verification.distances.get(distances_key(*classes, local_steps))
    return StoredReplay(step, entry.client_id, far.excess, tolerance_of(known), far.norm_ratio, far.cosine, *classes)
