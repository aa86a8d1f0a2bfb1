"""A played client's line: its requests and transfers, and what they take; and what all clients share."""

from collections.abc import Collection
from dataclasses import dataclass, field

from epochal.coordinator.machine import stimuli
from epochal.state.config.state_file import StateFile
from epochal.state.errors import Refused
from epochal.state.wire import ClientId
from epochal.tools.plan.costs import Costs
from epochal.tools.plan.played_coordinator import PlayedCoordinator
from epochal.tools.plan.scenario import ClientGroup
from epochal.tools.plan.shared_links import (
    Direction,
    PlayedTransfer,
    ServerLink,
    begin_transfer,
    end_transfer,
    slow_start_s,
)
from epochal.tools.plan.sizes import RunSizes
from epochal.tools.plan.virtual_time import Part, Timeline

REQUEST_BYTES = 450
"""About what a request takes, with its headers and token."""
ANSWER_BYTES = 450
"""Approximate size of an answer with its headers and a member's state."""
REPORT_BYTES = 400
"""About what a report takes beside that."""
ENTRY_BYTES = 250
"""About what an outcome or a page of results takes for each result."""


@dataclass(slots=True)
class Stages:
    """A client's round: times in seconds of virtual time; None for what it did not reach.

    Attributes:
        heard_s: when it had the round's document.
        fetched_s: when it held all results of the outcome before.
        held_s: when it held the replica to train from.
        data_s: for how long it waited for data only.
        trained_s: when its local steps were done.
        encoded_s: when its result was a file.
        sent_s: when the last byte of its result had reached the coordinator, or the object store.
        alone_s: how long the upload would have taken with the servers' links to itself.
        verified_s: when its result was verified.
        received_s: as a witness, when it held all results.
        attested_s: as a witness, when the coordinator had its attestation.
        batches: of its assignment.
        sent_bytes, received_bytes: what it sent and received since its round before.
    """

    heard_s: float | None = None
    fetched_s: float | None = None
    held_s: float | None = None
    data_s: float = 0.0
    trained_s: float | None = None
    encoded_s: float | None = None
    sent_s: float | None = None
    alone_s: float = 0.0
    verified_s: float | None = None
    received_s: float | None = None
    attested_s: float | None = None
    batches: int = 0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of all clients of a played run.

    Attributes:
        results_to, results_from: the link that results cross, to and from where they lie; as slow as whoever hands them
            out, which is the coordinator's processor where they are small and many.
        checkpoints_from: the same link, for checkpoints.
        result_copies: number of results for which each of a client's results stands, itself included.
        client_count: number of all clients.
        witness_copies: number of witnesses for which each played one stands.
        fetch_part: of the clients for which played ones that are no witnesses stand, the part that are none either.
        through_store: whether that is an object store, from which the coordinator reads each result to check it.
        to_coordinator, from_coordinator: the coordinator's link.
        elsewhere: a link that is never the limit, for data.
    """

    timeline: Timeline
    coordinator: PlayedCoordinator
    state: StateFile
    sizes: RunSizes
    costs: Costs
    to_coordinator: ServerLink
    from_coordinator: ServerLink
    results_to: ServerLink
    results_from: ServerLink
    checkpoints_from: ServerLink
    elsewhere: ServerLink
    through_store: bool
    client_count: int
    witness_copies: float
    fetch_part: float
    result_copies: dict[ClientId, float] = field(default_factory=dict)


class PlayedLine:
    """A client's line, and its machine's work on what comes over it."""

    def __init__(self, group: ClientGroup, copies: float, around: Surroundings) -> None:
        self.group = group
        self.copies = copies
        self.up = Direction(group.link.up_bytes_per_s)
        self.down = Direction(group.link.down_bytes_per_s)
        self.half_s = group.round_trip_s / 2
        self.had_bytes = 0.0
        """Parts of results that had arrived when their round was over; their download is resumed."""
        self._around = around
        self._under_way: list[PlayedTransfer] = []

    def end_round(self) -> None:
        """End the transfers of the round that is over."""
        self.had_bytes = 0.0
        for transfer in self._under_way:
            end_transfer(transfer)
            if transfer.server is self._around.results_from and not transfer.done.is_given:
                self.had_bytes += transfer.size_bytes - transfer.left_bytes
        self._under_way = []

    def ask(
        self,
        stimulus: stimuli.Stimulus | None = None,
        up_bytes: int = 0,
        down_bytes: int = 0,
        copies: float | None = None,
    ) -> Part:
        """Send a request, and wait for its answer. Return why it was refused, or None.

        Args:
            stimulus: what the coordinator is told; None if its machine is told nothing.
            up_bytes: of the request, beside `REQUEST_BYTES`.
            down_bytes: of the answer, beside `ANSWER_BYTES`.
            copies: number of such requests for which it stands; None for one of each client.
        """
        around, copies = self._around, self.copies if copies is None else copies
        self.count(REQUEST_BYTES + up_bytes, ANSWER_BYTES + down_bytes, copies)
        yield (REQUEST_BYTES + up_bytes) / self.up.bytes_per_s + self.half_s
        yield around.coordinator.processed(copies)
        refusal: Refused | None = None
        if stimulus is not None:
            refusal = yield around.coordinator.tell(stimulus)
        yield (ANSWER_BYTES + down_bytes) / self.down.bytes_per_s + self.half_s
        return refusal

    def fetch(self, count: int, most_connections: int, copies: float, had_bytes: float = 0.0) -> Part:
        """Receive so many results, without what had arrived before, over at most so many connections."""
        if not count:
            return
        around, each_bytes = self._around, self._around.sizes.result_bytes + ANSWER_BYTES
        connections = min(count, most_connections)
        self.count(count * REQUEST_BYTES, 0, copies)
        turns = -(-count // connections)
        yield turns * self.group.round_trip_s + around.costs.message_s
        yield self.slow_start_s(turns * each_bytes, self.down)
        rest_bytes = max(0.0, count * each_bytes - had_bytes)
        yield self.begin(self.down, around.results_from, rest_bytes, connections, copies=copies).done
        yield around.costs.hash_s * each_bytes

    def send(self, size_bytes: int, server: ServerLink, copies: float) -> Part:
        """Send bytes: they have arrived when this ends, as have those of the `copies` that they represent."""
        yield self.slow_start_s(size_bytes, self.up)
        yield self.begin(self.up, server, size_bytes, copies=copies).done
        yield self.half_s

    def begin(
        self,
        direction: Direction,
        server: ServerLink,
        size_bytes: float,
        connections: int = 1,
        *,
        copies: float | None = None,
        keep: bool = False,
    ) -> PlayedTransfer:
        """Begin a transfer; it ends with the round unless it is kept."""
        transfer = begin_transfer(direction, server, size_bytes, connections, self.copies if copies is None else copies)
        if not keep:
            self._under_way.append(transfer)
        return transfer

    def slow_start_s(self, size_bytes: float, direction: Direction) -> float:
        if not self._around.costs.slow_start:
            return 0.0
        return slow_start_s(size_bytes, direction.bytes_per_s, self.group.round_trip_s)

    def count(self, up_bytes: float, down_bytes: float, copies: float | None = None) -> None:
        """Count the bytes of a message, which is too short to take a part of a link, and of its copies."""
        copies = self.copies if copies is None else copies
        self.up.moved_bytes += up_bytes
        self.down.moved_bytes += down_bytes
        self._around.to_coordinator.moved_bytes += copies * up_bytes
        self._around.from_coordinator.moved_bytes += copies * down_bytes

    def count_of(self, clients: Collection[ClientId]) -> int:
        """Return the number of results that those of these clients represent."""
        return round(sum(map(self._around.result_copies.__getitem__, clients)))

    def merge_s(self, count: int) -> float:
        costs, sizes = self._around.costs, self._around.sizes
        merging_s = sizes.parameter_count * (costs.step_s + count * costs.of(self._around.state.merge.codec).merge_s)
        return max(merging_s, costs.hash_s * sizes.checkpoint_bytes)
