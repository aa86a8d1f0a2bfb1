"""Plays a run in virtual time: the real machine, and clients as described, from their joins to an epoch's end."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.run import Run
from epochal.state.checkpoint_parts import CheckpointPart, part_ranges, parts_digest
from epochal.state.config.state_file import Access, RunConfig, StateFile
from epochal.state.documents import CheckpointRef
from epochal.state.election import witness_count
from epochal.state.phase_names import RunState
from epochal.state.share_ceiling import apportion
from epochal.tools.plan.costs import Costs
from epochal.tools.plan.played_client import Copies, PlayedClient
from epochal.tools.plan.played_coordinator import PlayedCoordinator, PlayedRound, digest
from epochal.tools.plan.played_line import Surroundings
from epochal.tools.plan.scenario import UNLIMITED, ClientGroup, Link
from epochal.tools.plan.shared_links import ServerLink
from epochal.tools.plan.sizes import RunSizes
from epochal.tools.plan.virtual_time import Timeline

FOREVER_S = 1e12
FOREVER_STEPS = 10**9
WARMUPS = 3
FEWEST_WITNESSES = 4
"""Number of witnesses that are played where not all clients are: their quorum is half of them, and one."""
CLIENTS_PER_BATCH = 8
"""Played clients for each batch of a played round, where most clients have none: enough that newcomers remain."""
SPARE_S = 600.0
MAX_EVENTS = 30_000_000
"""Maximum number of events of a played run: beyond it the run never ends, or nearly so."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links of the servers.

    Attributes:
        coordinator: the coordinator's.
        store: the object store's, through which results and checkpoints go if the state file names one.
    """

    coordinator: Link = UNLIMITED
    store: Link = UNLIMITED


@dataclass(frozen=True, slots=True)
class ServerLinks:
    """The links of the servers as they are played.

    Attributes:
        to_coordinator, from_coordinator: the coordinator's.
        to_store, from_store: the object store's; None without one.
        results_from: the results that are handed out, on the link of where they lie, or as fast as the coordinator's
            processor answers who asks for them.
    """

    to_coordinator: ServerLink
    from_coordinator: ServerLink
    to_store: ServerLink | None
    from_store: ServerLink | None
    results_from: ServerLink

    @classmethod
    def of(cls, timeline: Timeline, links: Links, state: StateFile, sizes: RunSizes, costs: Costs) -> Self:
        """Return the links of a run's servers."""
        coordinator, store = links.coordinator, links.store if state.blobs.store is not None else None
        answered = sizes.result_bytes / costs.message_s
        return cls(
            ServerLink(timeline, coordinator.down_bytes_per_s),
            ServerLink(timeline, coordinator.up_bytes_per_s),
            None if store is None else ServerLink(timeline, store.down_bytes_per_s),
            None if store is None else ServerLink(timeline, store.up_bytes_per_s),
            ServerLink(timeline, min((store or coordinator).up_bytes_per_s, answered)),
        )


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """A run that was played.

    Attributes:
        rounds: those that ended, with an outcome or without.
        clients: the clients, with their stages of each round.
        phases: when the run reached each phase, and why.
        epoch_gap_s: from the last round of an epoch to the first of the next one; None if that was not played.
        checkpoint_s: from the beginning of Cooldown to its end; None as before.
        coordinator: the coordinator.
        servers: the links of the servers.
        reason: why the run went no further; "" if it went as far as was asked.
    """

    rounds: tuple[PlayedRound, ...]
    clients: tuple[PlayedClient, ...]
    phases: tuple[tuple[float, RunState, str], ...]
    epoch_gap_s: float | None
    checkpoint_s: float | None
    coordinator: PlayedCoordinator
    servers: ServerLinks
    reason: str


def play(
    state: StateFile,
    sizes: RunSizes,
    groups: Sequence[ClientGroup],
    links: Links,
    costs: Costs,
    rounds: int,
    scale: "Scale",
    *,
    with_epoch_end: bool = True,
) -> PlayedRun:
    """Return the first rounds of a run, as it will go.

    Args:
        state: the run's state file, as `Scale.state` returns it.
        sizes: of the run.
        groups: its clients, all there from the beginning.
        links: of its servers.
        costs: of every machine.
        rounds: number of rounds to be played.
        scale: how many of the clients are played.
        with_epoch_end: whether the end of the epoch is played after them.
    """
    timeline = Timeline()
    servers = ServerLinks.of(timeline, links, state, sizes, costs)
    clients: list[PlayedClient] = []

    def publish(run: Run) -> None:
        for client in clients:
            client.published(run)

    coordinator = PlayedCoordinator(timeline, state, costs, _first_checkpoint(state, sizes), publish)
    around = Surroundings(
        timeline=timeline,
        coordinator=coordinator,
        state=state,
        sizes=sizes,
        costs=costs,
        to_coordinator=servers.to_coordinator,
        from_coordinator=servers.from_coordinator,
        results_to=servers.to_store or servers.to_coordinator,
        results_from=servers.results_from,
        checkpoints_from=servers.from_store or servers.from_coordinator,
        elsewhere=ServerLink(timeline, math.inf),
        through_store=servers.to_store is not None,
        client_count=sum(group.count for group in groups),
        witness_copies=scale.witness_copies,
        fetch_part=scale.fetch_part,
    )
    for group, count in zip(groups, scale.counts, strict=True):
        first = len(clients)
        if count:
            copies = Copies(group.count / count, scale.result_copies or group.count / count)
            clients += [PlayedClient(first + number, group, copies, around) for number in range(count)]
        else:
            clients.append(PlayedClient(first, group, Copies(float(group.count), 0.0), around))
    for client in clients:
        timeline.start(client.join())

    reason = _play_until(timeline, lambda: len(coordinator.rounds) >= rounds, _bound_s(state, rounds))
    gap_s = checkpoint_s = None
    if with_epoch_end and not reason:
        gap_s, checkpoint_s = _end_epoch(timeline, coordinator, state)
    rounds_played, phases = tuple(coordinator.rounds), tuple(coordinator.phases)
    return PlayedRun(rounds_played, tuple(clients), phases, gap_s, checkpoint_s, coordinator, servers, reason)


def _play_until(timeline: Timeline, is_over: Callable[[], bool], bound_s: float) -> str:
    """Play until it is over; return why that cannot be reached, or ""."""
    last, end_s = timeline.event_count + MAX_EVENTS, timeline.now_s + bound_s
    timeline.run_while(lambda: not is_over() and timeline.event_count < last and timeline.now_s < end_s)
    return "" if is_over() else "the run goes no further"


def _bound_s(state: StateFile, rounds: int) -> float:
    """Return how long so many rounds take at most, after as many Warmups as a run has that goes well."""
    config = state.config
    round_s = config.max_round_train_time + config.round_witness_time
    return (rounds + 1) * round_s + WARMUPS * (config.warmup_time + config.waiting_for_members_extra_time) + SPARE_S


def _end_epoch(
    timeline: Timeline, coordinator: PlayedCoordinator, state: StateFile
) -> tuple[float | None, float | None]:
    """Let the epoch end with the round under way; return the time to the next epoch's round, and that of Cooldown."""
    ended = state.model_copy(update={"config": state.config.model_copy(update={"epoch_time": 0.001})})
    coordinator.tell(stimuli.ConfigChanged(ended))
    config = state.config
    bound_s = config.cooldown_time + _bound_s(state, 2)
    if _play_until(timeline, lambda: coordinator.run.clock.phase is RunState.COOLDOWN, bound_s):
        return None, None
    ended_s = coordinator.phases[-1][0]
    coordinator.tell(stimuli.ConfigChanged(state))
    if _play_until(timeline, lambda: coordinator.run.clock.phase is not RunState.COOLDOWN, bound_s):
        return None, None
    checkpoint = coordinator.run.models.checkpoint
    if checkpoint is None or checkpoint.step == 0:
        return None, None
    closed_s = coordinator.phases[-1][0]
    if _play_until(timeline, lambda: coordinator.run.clock.phase is RunState.ROUND_TRAIN, bound_s):
        return None, closed_s - ended_s
    return coordinator.phases[-1][0] - ended_s, closed_s - ended_s


@dataclass(frozen=True, slots=True)
class Scale:
    """Number of clients that are played, so that thousands take no longer than hundreds.

    Clients that are alike do alike: each played one represents several, whose bytes and messages take their part of
    the servers' links and of the coordinator's processor. Witnesses are few however many clients there are, and are
    scaled apart.

    Where a round has few batches for its clients, most of them have none: then a result represents fewer clients than
    the client that made it, so that a played round has enough results. Each group has its part of the played clients,
    and one that is too small for a member has a played client that follows the run and never has work.

    Attributes:
        counts: number of played members of each group.
        batches: of a played round.
        result_copies: number of results for which each stands; None for as many as the clients for which its client
            stands.
        witnesses: number of played ones; 0 for everyone.
        witness_copies: number of witnesses for which each stands.
        fetch_part: see `Surroundings`.
        min_clients, init_min_clients: of the played run.
    """

    counts: tuple[int, ...]
    batches: int
    result_copies: float | None
    witnesses: int
    witness_copies: float
    fetch_part: float
    min_clients: int
    init_min_clients: int

    @classmethod
    def of(cls, state: StateFile, groups: Sequence[ClientGroup], batches: int, most: int) -> Self:
        """Return the scale at which about `most` clients are played, and at least one of each group.

        Args:
            state: the run's state file.
            groups: its clients.
            batches: of a round.
            most: number of clients up to which all are played.
        """
        config, whole = state.config, sum(group.count for group in groups)
        if whole <= most:
            counts = tuple(group.count for group in groups)
            least = config.min_clients, config.init_min_clients
            return cls(counts, batches, None, config.witness_nodes, 1.0, 1.0, *least)
        copies = whole / most
        result_copies = max(1.0, batches * CLIENTS_PER_BATCH / most)
        if result_copies < copies:
            return cls._of_few_batches(config, [group.count for group in groups], batches, result_copies, most)
        few = max(1, most // (4 * len(groups)))
        counts = tuple(group.count if group.count <= few else max(few, round(group.count / copies)) for group in groups)
        played = sum(counts)
        claims = sum(group.count * group.batches_per_round for group in groups)
        played_claims = sum(n * group.batches_per_round for n, group in zip(counts, groups, strict=True))
        witnesses = witness_count(whole, config.witness_nodes)
        played_witnesses = min(witnesses, FEWEST_WITNESSES)
        return cls(
            counts,
            max(1, round(batches * played_claims / claims)),
            None,
            played_witnesses,
            witnesses / played_witnesses,
            (1 - witnesses / whole) / (1 - played_witnesses / played),
            max(played_witnesses, round(config.min_clients * played / whole)),
            max(played_witnesses, round(config.init_min_clients * played / whole)),
        )

    @classmethod
    def _of_few_batches(
        cls, config: RunConfig, groups: Sequence[int], batches: int, result_copies: float, most: int
    ) -> Self:
        """Return the scale for rounds in which most clients have no work; `groups` are their numbers."""
        whole = sum(groups)
        witnesses = witness_count(whole, config.witness_nodes)
        played_witnesses = max(min(witnesses, FEWEST_WITNESSES), round(witnesses / result_copies))
        elected = min(witnesses, batches)  # of those that have delivered
        played_elected = min(played_witnesses, batches)
        return cls(
            tuple(apportion(groups, most)),
            max(1, round(batches / result_copies)),
            result_copies,
            played_witnesses,
            witnesses / played_witnesses,
            (1 - elected / whole) / (1 - played_elected / most),
            max(played_elected, round(config.min_clients * most / whole)),
            max(played_elected, round(config.init_min_clients * most / whole)),
        )

    def state(self, state: StateFile) -> StateFile:
        """Return the state file of the run that is played: open, without an end, with rounds of one size."""
        config = state.config.model_copy(
            update={
                "epoch_time": FOREVER_S,
                "total_steps": FOREVER_STEPS,
                "global_batch_size_start": self.batches,
                "global_batch_size_end": self.batches,
                "global_batch_size_warmup_tokens": 0,
                "data_fingerprint": None,
                "witness_nodes": self.witnesses,
                "min_clients": self.min_clients,
                "init_min_clients": self.init_min_clients,
            }
        )
        progress = state.progress.model_copy(update={"step": 1, "epoch": 0, "epoch_start_data_index": 0})
        update = {"config": config, "access": Access(), "progress": progress, "data_generations": (), "run_state": None}
        return state.model_copy(update=update)


def _first_checkpoint(state: StateFile, sizes: RunSizes) -> tuple[CheckpointRef, tuple[CheckpointPart, ...]]:
    ranges = part_ranges(sizes.checkpoint_bytes, state.blobs.part_bytes)
    parts = tuple(
        CheckpointPart(digest(f"part {number} of 0"), stop - start) for number, (start, stop) in enumerate(ranges)
    )
    blob, replica = parts_digest(parts), digest("replica 0")
    found = CheckpointRef(0, blob, sizes.checkpoint_bytes, replica, len(parts))
    return found, parts if len(parts) > 1 else ()
