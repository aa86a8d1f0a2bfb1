"""One model of a round, planned or real: how long its parts take, from sizes, links and speeds.

A round's results are added up as they are checked; what is left after the last one is its own addition, the encoding of
the update, and its publication. Then every client fetches the one update, and takes the outer step while it arrives.

Pure functions. `epochal plan` and `epochal init` play the coordinator's machine with them; simulations of real clients
take from them how long training, messages and transfers last. The page's explanation shares with a plan the critical
path (`state/shown/critical_path.py`), which is made of what happened, or was played. A link is shared fairly by who
uses it: each transfer gets its max-min fair part of its client's link and of the server's (Bertsekas and Gallager,
*Data Networks*, 1992, section 6.5.2). Where clients are alike, they do alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from epochal.state.checkpoint_parts import UPDATE_PART_BYTES
from epochal.state.documents import MAX_SHARE
from epochal.state.messages.deliveries import MAX_DELIVERED_BYTES

PARTS = ("training", "data", "encoding", "upload", "check", "update", "download", "merge", "messages", "waiting")
"""The parts of a round, each once on the path that determines when it ends."""
MESSAGE_BYTES = 450
"""About what a request or an answer takes, with its headers."""
REPORT_BYTES = 400
"""About what a report takes beside that."""
ENTRY_BYTES = 250
"""About what an outcome or a page of results takes for each result."""
DOCUMENT_BYTES = 2600
"""About what the run document takes, with its answer's headers."""
TCP_WINDOW_BYTES = 14_600
"""Bytes that a connection sends before the first answer: ten segments (RFC 6928)."""
READ_DISK_S = 0.5e-9
"""Seconds for a byte of a checkpoint that is read and laid out, beside hashing it."""
LAST_BYTES = 4 * UPDATE_PART_BYTES
"""Of an update, what a client fetches at a time: these parts are there together."""
PAGE_S_PER_CLIENT = 0.00005
"""Minimum time between two polls of a witness for results, for each client of the round."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link, seen from its owner.

    Attributes:
        down_bytes_per_s: bytes that it receives in a second.
        up_bytes_per_s: bytes that it sends in a second.
    """

    down_bytes_per_s: float
    up_bytes_per_s: float


UNLIMITED = Link(math.inf, math.inf)
"""The link of a server that is never the limit."""


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
class ClientGroup:
    """Clients that are alike.

    Attributes:
        count: their number.
        link: of each.
        round_trip_s: seconds that a message and its answer take.
        tokens_per_s: tokens that each trains in a second.
        batches_per_round: the most batches that each takes in a round (`epochal client --share`).
        name: as it was written.
    """

    count: int
    link: Link
    round_trip_s: float
    tokens_per_s: float
    batches_per_round: int = MAX_SHARE
    name: str = ""


@dataclass(frozen=True, slots=True)
class RunSizes:
    """The sizes of a run, in bytes unless noted.

    Attributes:
        parameter_count: number of the model's parameters.
        result_bytes: of a client's result, as it travels.
        update_bytes: of a round's update, as it travels.
        checkpoint_bytes: of a checkpoint, with outer momentum.
        tokens_per_batch: tokens of one batch.
        data_bytes_per_batch: that a client receives for one batch; 0 if the data lie on its disk.
        spool_bytes: of a client's spool, and of the inner states that it keeps.
        scratch_bytes: of what a coordinator needs to make updates.
    """

    parameter_count: int
    result_bytes: int
    update_bytes: int
    checkpoint_bytes: int
    tokens_per_batch: int
    data_bytes_per_batch: int
    spool_bytes: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CodecCosts:
    """Seconds for one parameter, in one thread.

    Attributes:
        encode_s: to encode a difference.
        check_s: to check a result.
        merge_s: to decode and add one result, or an update.
    """

    encode_s: float
    check_s: float
    merge_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The time that a machine's work takes.

    Measured on 2 cores (x86_64, SHA instructions); what a message costs a coordinator is from
    `docs/benchmarks-scale.md`. Other machines differ by a factor of two or three, which matters only where
    links are fast.

    Attributes:
        codecs: of each codec.
        step_s: seconds for one parameter of an outer step.
        hash_s: seconds to hash one byte.
        message_s: processor time of the coordinator for a message and its answer.
        commit_s: seconds until a message that a coordinator received is durable.
        begin_s: seconds of a client from a round's document to its first local step, without any of the above.
        slow_start: whether connections begin slowly, as TCP does on a long way.
    """

    codecs: Mapping[str, CodecCosts] = field(
        default_factory=lambda: {
            "float32": CodecCosts(0.6e-9, 0.3e-9, 0.3e-9),
            "int8": CodecCosts(1.5e-9, 0.5e-9, 1.2e-9),
            "int4": CodecCosts(3.2e-9, 1.1e-9, 1.4e-9),
            "int2": CodecCosts(11.0e-9, 1.1e-9, 1.4e-9),
            "sparse": CodecCosts(9.5e-9, 0.3e-9, 3.0e-9),
        }
    )
    step_s: float = 6.0e-9
    hash_s: float = 0.6e-9
    message_s: float = 0.00018
    commit_s: float = 0.003
    begin_s: float = 0.004
    slow_start: bool = True


def way_s(size_bytes: float, bytes_per_s: float, round_trip_s: float) -> float:
    """Return how long a message is on its way, over a link of its own."""
    return round_trip_s / 2 + size_bytes / bytes_per_s


def slow_start_s(size_bytes: float, bytes_per_s: float, round_trip_s: float) -> float:
    """Return by how much longer bytes take because a connection begins slowly: its window doubles each round trip.

    The window begins at `TCP_WINDOW_BYTES` (RFC 6928), after a pause as for a new connection (RFC 5681, section 4.1).
    """
    sent_bytes, window_bytes, took_s = 0.0, float(TCP_WINDOW_BYTES), 0.0
    while window_bytes < bytes_per_s * round_trip_s and sent_bytes + window_bytes < size_bytes:
        sent_bytes, took_s = sent_bytes + window_bytes, took_s + round_trip_s
        window_bytes *= 2
    return max(0.0, took_s - sent_bytes / bytes_per_s) if took_s else 0.0


@dataclass(frozen=True, slots=True)
class LinkTransfer:
    """Bytes that each of some clients that are alike moves over its own link and a server's.

    Attributes:
        count: number of these clients.
        bytes_per_s: rate of the link of each.
        pieces: bytes that follow one another, each with the time from which they can be moved, in order.
    """

    count: float
    bytes_per_s: float
    pieces: tuple[tuple[float, float], ...]


def fair_rates(transfers: Sequence[LinkTransfer], server_bytes_per_s: float) -> list[float]:
    """Return the max-min fair rate of each client of each transfer over a server's link."""
    rates = [transfer.bytes_per_s for transfer in transfers]
    if math.isinf(server_bytes_per_s):
        return rates
    left_s, clients = server_bytes_per_s, sum(transfer.count for transfer in transfers)
    for place in sorted(range(len(transfers)), key=lambda place: transfers[place].bytes_per_s):
        transfer = transfers[place]
        rates[place] = min(transfer.bytes_per_s, left_s / clients) if clients > 0 else transfer.bytes_per_s
        left_s, clients = max(0.0, left_s - transfer.count * rates[place]), clients - transfer.count
    return rates


def arrivals_s(transfers: Sequence[LinkTransfer], server_bytes_per_s: float) -> list[list[float]]:
    """Return when each piece of each transfer has been moved, where all of them share a server's link."""
    ends: list[list[float]] = [[] for _ in transfers]
    left = [[size for _, size in transfer.pieces] for transfer in transfers]
    now_s = 0.0

    def piece_from_s(place: int) -> float:
        return transfers[place].pieces[len(ends[place])][0]

    while unfinished := [place for place, transfer in enumerate(transfers) if len(ends[place]) < len(transfer.pieces)]:
        moving = [place for place in unfinished if piece_from_s(place) <= now_s]
        later_s = min((piece_from_s(place) for place in unfinished if piece_from_s(place) > now_s), default=math.inf)
        rates = fair_rates([transfers[place] for place in moving], server_bytes_per_s)
        needs_s = [left[place][len(ends[place])] / rate for place, rate in zip(moving, rates, strict=True)]
        passed_s = min([later_s - now_s, *needs_s])
        now_s = later_s if passed_s == later_s - now_s else now_s + passed_s
        for place, rate, need_s in zip(moving, rates, needs_s, strict=True):
            if need_s <= passed_s:
                ends[place].append(now_s)
            else:
                left[place][len(ends[place])] -= rate * passed_s
    return ends


@dataclass(frozen=True, slots=True)
class Workers:
    """Clients of a round that are alike and have as much work.

    Attributes:
        group: what they are.
        count: their number.
        batches: of each one's assignment.
        held_s: when they hold the replica to train from; with `merge.delay`, when they can begin before the round.
        heard_s: when they had the round's document, or the one that promised the round.
        sends_from_s: when they can send a result; as soon as there is one, unless the round has not begun.
    """

    group: ClientGroup
    count: float
    batches: int
    held_s: float
    heard_s: float
    sends_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """When workers have done each part of a round, in seconds.

    Attributes:
        held_s: the replica to train from is there.
        trained_s: local steps and waits for data are over.
        data_s: for how long they waited for data only.
        encoded_s: the result is a file.
        committed_s: it is announced, and others' results may be read.
        sent_s: its last byte has reached the coordinator, or the object store.
        verified_s: it was checked.
    """

    held_s: float
    trained_s: float
    data_s: float
    encoded_s: float
    committed_s: float
    sent_s: float
    verified_s: float


@dataclass(frozen=True, slots=True)
class UpdateReader:
    """Clients that are alike and fetch an update.

    Attributes:
        group: what they are.
        count: their number.
        from_s: when they ask for it; it is there by then.
    """

    group: ClientGroup
    count: float
    from_s: float


@dataclass(frozen=True, slots=True)
class RoundModel:
    """How long the parts of a run's rounds take.

    Attributes:
        sizes: of the run.
        links: of its servers.
        costs: of every machine's work.
        codec: of the results.
        update: codec of the update.
        through_store: whether results and checkpoints go through an object store.
        client_count: number of all clients.
    """

    sizes: RunSizes
    links: Links
    costs: Costs
    codec: str
    update: str
    through_store: bool
    client_count: int

    @property
    def server(self) -> Link:
        """The link over which results and checkpoints go."""
        return self.links.store if self.through_store else self.links.coordinator

    @property
    def is_delivered(self) -> bool:
        """Whether a result is so small that it comes with its commitment (`state/messages/deliveries.py`)."""
        return self.sizes.result_bytes <= MAX_DELIVERED_BYTES

    @property
    def check_s(self) -> float:
        """How long the check of a result takes, beside hashing it."""
        return self.costs.codecs[self.codec].check_s * self.sizes.parameter_count

    def slow_start_s(self, size_bytes: float, bytes_per_s: float, round_trip_s: float) -> float:
        """Return by how much longer bytes take because their connection begins slowly."""
        return slow_start_s(size_bytes, bytes_per_s, round_trip_s) if self.costs.slow_start else 0.0

    def heard_s(self, group: ClientGroup) -> float:
        """Return how long after a change the last of these clients has the run document."""
        answered_s = self.client_count * self.costs.message_s
        return answered_s + way_s(DOCUMENT_BYTES, group.link.down_bytes_per_s, group.round_trip_s)

    def reported_s(self, group: ClientGroup, count: float) -> float:
        """Return how long it takes until the last of so many reports is kept."""
        sent_s = way_s(MESSAGE_BYTES + REPORT_BYTES, group.link.up_bytes_per_s, group.round_trip_s)
        return sent_s + count * self.costs.message_s + self.costs.commit_s

    def listed_s(self, group: ClientGroup, count: float) -> float:
        """Return how long after the last result a witness has the list of so many."""
        listed_s = way_s(ENTRY_BYTES * count, group.link.down_bytes_per_s, group.round_trip_s)
        if count > 1:  # they hardly come at once: the list is asked for again, or was just then
            listed_s += group.round_trip_s / 2 + PAGE_S_PER_CLIENT * self.client_count
        return listed_s

    def published_s(self, verified_s: float, decided_s: float) -> float:
        """Return when a round's update can be fetched: its last result was checked, and its outcome decided, before.

        The coordinator takes the outer step, too, whose replica's digest it publishes with the update.
        """
        sizes, costs = self.sizes, self.costs
        added_s = verified_s + costs.codecs[self.codec].merge_s * sizes.parameter_count
        encode_s = costs.codecs[self.update].encode_s * sizes.parameter_count
        encode_s += costs.hash_s * sizes.update_bytes + costs.commit_s
        if self.through_store:
            encode_s += sizes.update_bytes / min(self.links.coordinator.up_bytes_per_s, self.server.down_bytes_per_s)
        return max(added_s, decided_s) + encode_s + self.merge_s  # which is how its replica's digest is known

    def named_s(self, group: ClientGroup, heard_s: float, published_s: float) -> float:
        """Return when these clients know of an update: from the document that they ask for after that of the round."""
        return max(published_s, heard_s + group.round_trip_s / 2) + group.round_trip_s / 2

    def fetched_s(self, readers: Sequence[UpdateReader]) -> list[float]:
        """Return when each of these clients holds the update, where all of them share the server's link."""
        size_bytes, reads = self.sizes.update_bytes + MESSAGE_BYTES, list[LinkTransfer]()
        for one in readers:
            rate, round_trip_s = one.group.link.down_bytes_per_s, one.group.round_trip_s
            begun_s = one.from_s + round_trip_s + self.slow_start_s(size_bytes, rate, round_trip_s)
            reads.append(LinkTransfer(one.count, rate, ((begun_s, float(size_bytes)),)))
        served = min(self.server.up_bytes_per_s, size_bytes / self.costs.message_s)
        return [end_s + self.costs.hash_s * size_bytes for (end_s,) in arrivals_s(reads, served)]

    @property
    def merge_s(self) -> float:
        """How long the outer step takes with an update that is there."""
        a_parameter_s = self.costs.step_s + self.costs.codecs[self.update].merge_s
        return max(self.sizes.parameter_count * a_parameter_s, self.costs.hash_s * self.sizes.checkpoint_bytes)

    def held_s(self, from_s: float, fetched_s: float) -> float:
        """Return when a client has taken the outer step, which follows the parts of the update as they arrive.

        Args:
            from_s: when it began to fetch the update.
            fetched_s: when it held all of it; what is left then is what arrived together at the end.
        """
        left_s = self.merge_s * min(1.0, LAST_BYTES / self.sizes.update_bytes)
        return max(from_s + self.merge_s, fetched_s + left_s)

    def warm_up_s(self, groups: Sequence[ClientGroup]) -> list[float]:
        """Return how long the clients of each group take to load a checkpoint, all at the same time."""
        size_bytes, loads = self.sizes.checkpoint_bytes, list[LinkTransfer]()
        for group in groups:
            rate = group.link.down_bytes_per_s
            begun_s = group.round_trip_s + self.slow_start_s(size_bytes, rate, group.round_trip_s)
            loads.append(LinkTransfer(group.count, rate, ((begun_s, float(size_bytes)),)))
        read_s = size_bytes * (self.costs.hash_s + READ_DISK_S)
        return [end_s + read_s for (end_s,) in arrivals_s(loads, self.server.up_bytes_per_s)]

    def checkpoint_s(self, group: ClientGroup) -> float:
        """Return how long a client takes to announce and upload a checkpoint that it holds, until that is checked."""
        size_bytes = self.sizes.checkpoint_bytes
        upload_s = size_bytes / min(group.link.up_bytes_per_s, self.server.down_bytes_per_s)
        return self.reported_s(group, 1) + upload_s + group.round_trip_s + 3 * self.costs.hash_s * size_bytes

    def deliveries(self, workers: Sequence[Workers]) -> list[Delivery]:
        """Return when each of these workers has done each part of a round, until its result is checked."""
        found = [self.trained(one) for one in workers]
        uploads = []
        for one, delivery in zip(workers, found, strict=True):
            size_bytes = self.sizes.result_bytes + MESSAGE_BYTES + (REPORT_BYTES if self.is_delivered else 0)
            rate, round_trip_s = one.group.link.up_bytes_per_s, one.group.round_trip_s
            signed_s = round_trip_s + self.costs.message_s if self.through_store and not self.is_delivered else 0.0
            ready_s = max(delivery.encoded_s, one.sends_from_s)
            announced_s = ready_s if self.is_delivered else delivery.committed_s
            begun_s = announced_s + signed_s + self.slow_start_s(size_bytes, rate, round_trip_s)
            uploads.append(LinkTransfer(one.count, rate, ((begun_s, float(size_bytes)),)))
        sent = arrivals_s(uploads, self.server.down_bytes_per_s)
        found = [
            replace(delivery, sent_s=end_s + one.group.round_trip_s / 2)
            for one, delivery, (end_s,) in zip(workers, found, sent, strict=True)
        ]
        return self._checked(workers, found)

    def training_s(self, group: ClientGroup, batches: float) -> float:
        """Return how long a client's local steps over so many batches take, from the round's document on."""
        return self.costs.begin_s + batches * self.sizes.tokens_per_batch / group.tokens_per_s

    def trained(self, one: Workers) -> Delivery:
        """Return when each of these workers has its result, and is bound to it."""
        sizes, costs = self.sizes, self.costs
        training_s = self.training_s(one.group, one.batches)
        data_bytes = one.batches * sizes.data_bytes_per_batch
        data_s = max(0.0, one.heard_s + data_bytes / one.group.link.down_bytes_per_s - one.held_s - training_s)
        trained_s = one.held_s + training_s + data_s
        encode_s = costs.codecs[self.codec].encode_s * sizes.parameter_count + costs.hash_s * sizes.result_bytes
        encoded_s = trained_s + encode_s
        committed_s = (
            max(encoded_s, one.sends_from_s) + self.reported_s(one.group, one.count) + one.group.round_trip_s / 2
        )
        return Delivery(one.held_s, trained_s, data_s, encoded_s, committed_s, 0.0, 0.0)

    def _checked(self, workers: Sequence[Workers], found: Sequence[Delivery]) -> list[Delivery]:
        """Return deliveries with the time at which each was checked; one from a store is read by the coordinator."""
        sizes, costs = self.sizes, self.costs
        if self.is_delivered:
            return [
                replace(
                    delivery,
                    committed_s=(
                        verified_s := delivery.sent_s + one.count * (costs.message_s + self.check_s) + costs.commit_s
                    )
                    + one.group.round_trip_s / 2,
                    verified_s=verified_s,
                )
                for one, delivery in zip(workers, found, strict=True)
            ]
        read = [delivery.sent_s for delivery in found]
        if self.through_store:
            rate = self.links.coordinator.down_bytes_per_s
            reads = [
                LinkTransfer(one.count, rate, ((delivery.sent_s + one.group.round_trip_s, float(sizes.result_bytes)),))
                for one, delivery in zip(workers, found, strict=True)
            ]
            read = [end_s for (end_s,) in arrivals_s(reads, rate)]
        work_s = self.check_s + costs.hash_s * sizes.result_bytes + costs.commit_s
        return [replace(delivery, verified_s=read_s + work_s) for delivery, read_s in zip(found, read, strict=True)]
