"""Opening a run: the one that the store holds or a new one, and what happened to it since it was kept."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.machine.parts.run_identity import lineage_of
from epochal.coordinator.machine.run import Run, new_run
from epochal.coordinator.machine.stimuli import (
    ConfigChanged,
    CoordinatorKeyReplaced,
    CoordinatorStarted,
    GenesisProvided,
    RunRestored,
    Stimulus,
)
from epochal.coordinator.proof.kept_blobs import check_blobs_are_there
from epochal.coordinator.run.followers import Follower
from epochal.coordinator.run.genesis import NO_GENESIS, Genesis, GenesisRules, keep_made_genesis
from epochal.coordinator.run.run_journal import RunJournal
from epochal.coordinator.store.replication import Heartbeats
from epochal.coordinator.store.sql.notes import KEY_LOST
from epochal.coordinator.store.store import Store
from epochal.runtime.clock import Clock, RunClock
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.checkpoint_parts import digests_of
from epochal.state.config.changes import Change, names_the_checkpoint, runtime_changes
from epochal.state.config.state_file import StateFile
from epochal.state.config.support import unsupported_from
from epochal.state.errors import InvalidInput, StoreConflict, StoreFailed, Unsupported
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

MAX_LIVE_CHECKS = 5
"""Maximum number of times that a start looks for the blobs of a run that others serve meanwhile."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The resources of a service that owns a run.

    Attributes:
        coordinator_key: raw Ed25519 public key, hex.
        follower: of the journal.
        source: the state file's name, for messages.
        replaces_key: whether this key replaces the run's.
        new_seed: fresh random bytes in hex; a simulation brings its own.
        genesis: the run's model at its start, where the operator makes it.
        worker: replays the journal when it is compacted.
    """

    store: Store
    clock: Clock
    coordinator_key: str
    follower: Follower
    source: str = "state.toml"
    replaces_key: bool = False
    new_seed: Callable[[], str] = lambda: secrets.token_hex(32)
    genesis: Genesis = NO_GENESIS
    worker: Worker = field(default_factory=InlineWorker)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run that a service continues.

    Attributes:
        journal: of the run.
        stimuli: those to handle before all others.
        ahead_s: difference of the run's time, by the coordinators that serve it, to this machine's monotonic clock;
            None if there are none.
    """

    journal: RunJournal
    stimuli: tuple[Stimulus, ...]
    ahead_s: float | None = None

    def clock(self, options: ServiceOptions) -> RunClock:
        """Return the run's clock, which the clocks of coordinators that serve it agree with."""
        clock = options.store.place.clock(options.clock)
        now_s = None if self.ahead_s is None else clock.monotonic_s() + self.ahead_s
        return RunClock(clock, not_before_s=self.journal.run.clock.now_s, now_s=now_s)


async def signing_key_of(store: Store, *, anew: bool) -> SigningKey:
    """Return the key of the store's coordinator; create it only for a run that was never started.

    Args:
        store: holds the key and perhaps a run.
        anew: replace the key that is kept.

    Raises:
        InvalidInput: others serve the run, and the key is to be replaced.
        StoreFailed: the store holds a run without its key, or with something else in its place.
    """
    if anew:
        if await store.place.is_served():  # by coordinators that hold the present one
            raise _others_serve(store, "--new-coordinator-key")
        return SigningKey(await store.keys.replace_private_key())
    kept = await store.keys.private_key()
    if kept is None:
        if await store.journal.load() is not None:
            raise StoreFailed(f"{store.name} holds a run, but not its coordinator's key; {KEY_LOST}")
        kept = await store.keys.create_private_key()
    return SigningKey(kept)


async def open_run(options: ServiceOptions, state_file: StateFile, *, is_restored: bool) -> OpenedRun:
    """Return the run that the store holds, or a new one.

    Args:
        options: store, clock and key.
        state_file: the validated state file. If the store already holds the run, edited fields are applied that may
            change during a run.
        is_restored: the store holds a backup, which clients that have seen later documents must follow.

    Raises:
        InvalidInput: the state file differs from the kept run in a field that may not change, or allows fewer bytes
            of blobs than are held; there is no run to restore; its first checkpoint cannot be made; or the store is a
            backup, and the options do not say so.
        OtherRules: the journal was written under other rules.
        StoreFailed: the journal is gone or damaged; the coordinator's key is not the run's; or blobs are missing.
    """
    store = options.store
    journal = await RunJournal.load(store.journal)  # who cannot replay it takes no lease
    others = () if store.replication is None else (await store.replication.meet(Heartbeats())).others
    is_live, asked_s = bool(others), options.clock.monotonic_s()
    if is_live and (is_restored or options.replaces_key):
        raise _others_serve(store, "--restored" if is_restored else "--new-coordinator-key")
    if journal is None:
        if is_restored:
            raise InvalidInput("--restored: the store holds no run; restore the backup first")
        run = new_run(
            state_file,
            lineage=lineage_of(options.new_seed()),
            coordinator_key=options.coordinator_key,
            now_s=store.place.clock(options.clock).wall_s(),
        )
        held = await store.blobs.held()
        provided = await _provided_genesis(options, run, state_file)  # before the journal: a failed start begins no run
        _check_no_run_is_lost(store.name, held.difference(_blobs_of(provided)))
        try:
            return OpenedRun(await RunJournal.begin(store.journal, run), (*provided, CoordinatorStarted()))
        except StoreConflict:  # another coordinator has begun the run in the meantime
            return await open_run(options, state_file, is_restored=is_restored)
    stimuli = await _stimuli_of_start(options, journal, state_file, is_restored=is_restored, is_live=is_live)
    told = [left.now_s - asked_s for left in others if left.now_s is not None]
    return OpenedRun(journal, stimuli, max(told, default=None))


def _others_serve(store: Store, option: str) -> InvalidInput:
    return InvalidInput(f"{option}: other coordinators serve the run in {store.name}; stop them all first")


async def _stimuli_of_start(
    options: ServiceOptions, journal: RunJournal, state_file: StateFile, *, is_restored: bool, is_live: bool
) -> tuple[Stimulus, ...]:
    """Return the stimuli to handle before all others where the store holds the run. Raises as `open_run` does."""
    store = options.store
    if store.is_backup and not is_restored:
        raise InvalidInput(f"{store.name} is a backup; start from it with --restored: clients return to what it holds")
    if journal.is_doubtful:
        log.warning("journal_may_have_gone_back", extra={"consequence": "clients return to the state that it holds"})
    _check_edited(journal.run, state_file, store.blobs.total_bytes, options.source)
    _check_key(journal.run, options)
    if is_live:
        await _check_blobs_of_live_run(journal, store)
    else:
        await check_blobs_are_there(journal.run, store.blobs, store.name)
    stimuli: list[Stimulus] = [] if is_live else [CoordinatorStarted()]  # nobody was away where others served it
    if is_restored or journal.is_doubtful:  # clients may have seen what was lost
        stimuli.append(RunRestored(lineage_of(options.new_seed())))
    if options.coordinator_key != journal.run.identity.coordinator_key:
        log.warning("coordinator_key_replaced", extra={"before": journal.run.identity.coordinator_key})
        stimuli.append(CoordinatorKeyReplaced(options.coordinator_key, lineage_of(options.new_seed())))
    applied, _ = _edits(journal.run, state_file)
    if applied:
        stimuli.append(ConfigChanged(state_file))
    for change in applied:
        log.info("config_change_applied", extra={"change": str(change)})
    if any(map(names_the_checkpoint, applied)):
        log.info("run_goes_on_from_its_own_checkpoint", extra={"replica_step": journal.run.progress.replica_step})
    return *stimuli, *await _provided_genesis(options, journal.run, state_file)


async def _check_blobs_of_live_run(journal: RunJournal, store: Store) -> None:
    """Check as `check_blobs_are_there` does; others may have deleted what was needed when the journal was read."""
    for _ in range(MAX_LIVE_CHECKS):
        try:
            await check_blobs_are_there(journal.run, store.blobs, store.name)
        except StoreFailed:
            if not await journal.catch_up():
                raise
        else:
            return
    raise StoreFailed(f"{store.name}: the run went on each time that its blobs were looked for; start again")


def _blobs_of(provided: tuple[GenesisProvided, ...]) -> set[Sha256]:
    """Return the blobs of the first checkpoint, if it was made."""
    return {sha256 for made in provided for sha256 in digests_of(made.checkpoint, made.parts)}


def _check_no_run_is_lost(store_name: str, others: frozenset[Sha256]) -> None:
    """Raise `StoreFailed` if a store without a journal holds blobs other than the first checkpoint of a new run.

    A new run would delete them. An earlier start that failed may have left its first checkpoint.
    """
    if others:
        raise StoreFailed(
            f"{store_name} holds {len(others)} blobs of a run, but no journal, which would say what they are. Put the "
            "journal back (is its volume mounted?), or restore a backup; a new run needs an empty folder"
        )


async def _provided_genesis(options: ServiceOptions, run: Run, state_file: StateFile) -> tuple[GenesisProvided, ...]:
    """Make the run's first checkpoint if it has none and the operator makes it; return what happened."""
    if run.models.checkpoint is not None or state_file.access.genesis != "operator":
        return ()
    rules = GenesisRules.of(state_file, run.progress.replica_step, options.genesis.layout_of)
    provided = await keep_made_genesis(options.genesis, rules, options.store.blobs)
    return () if provided is None else (provided,)


def _check_key(run: Run, options: ServiceOptions) -> None:
    """Raise `StoreFailed` unless the coordinator has the run's key, or is to replace it."""
    if options.coordinator_key != run.identity.coordinator_key and not options.replaces_key:
        raise StoreFailed(
            f"{options.store.name} holds the coordinator's key {options.coordinator_key}, but the run's is "
            f"{run.identity.coordinator_key}: nobody would believe what it signs; {KEY_LOST}"
        )


def _edits(run: Run, state_file: StateFile) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Return the differences from the kept run's state file that are applied, and those that are refused."""
    return runtime_changes(run.identity.state_file, state_file, has_checkpoint=run.models.checkpoint is not None)


def _check_edited(run: Run, state_file: StateFile, held_bytes: int, source: str) -> None:
    """Raise `InvalidInput` unless the kept run may go on with this state file."""
    _, refused = _edits(run, state_file)
    if refused:
        lines = "\n".join(f"  {change}" for change in refused)
        raise InvalidInput(
            f"{source} differs from the kept run in fields that may no longer change:\n{lines}\n"
            "some can from a step on, while the run is served: epochal change URL --at-step N",
            source=source,
        )
    changed = state_file.model_copy(update={"changes": run.identity.state_file.changes})
    if wrong := tuple(unsupported_from(changed, run.progress.step)):
        raise Unsupported(f"{source}, with the changes that the run has made since", wrong)
    most = state_file.blobs.max_total_bytes
    if most < min(held_bytes, run.state_file.blobs.max_total_bytes):
        raise InvalidInput(
            f"{source}: blobs.max_total_bytes is {most}, but the run holds {held_bytes} bytes; allowed: "
            f"{held_bytes} or more",
            source=source,
        )
