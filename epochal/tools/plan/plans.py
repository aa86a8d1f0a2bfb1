"""A plan as a value: how a run will go, and with what that was planned."""

import math
from dataclasses import dataclass, field

from epochal.state.round_model import PARTS, ClientGroup, Costs, Links, RunSizes

DAY_S = 86_400.0
MAX_PLAYED_CLIENTS = 256
"""Number of clients up to which each is simulated; of more, each simulated one represents several."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A round of each client of a group: medians, in seconds and bytes.

    Attributes:
        group: the clients.
        batches: of a client's assignment.
        parts: seconds of its own round by part (`PARTS`); "waiting" is the rest of it.
        sent_bytes, received_bytes: in one round.
        delivered_part: part of its assignments that were applied; 1 if it had none.
    """

    group: ClientGroup
    batches: float
    parts: dict[str, float]
    sent_bytes: float
    received_bytes: float
    delivered_part: float


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines' needs, in bytes unless noted.

    Attributes:
        client_memory_bytes: of a client without its trainer.
        coordinator_disk_bytes: of its folder or store for results and checkpoints, if no object store holds them.
        store_disk_bytes: of the object store, if there is one.
        to_coordinator_bytes, from_coordinator_bytes: of one round, through the coordinator.
        to_store_bytes, from_store_bytes: of one round, through the object store.
        processor_part: part of a core that the coordinator takes.
        base_bytes: memory of an adapter's base at every client, by its precision.
    """

    client_memory_bytes: int = 0
    coordinator_disk_bytes: int = 0
    store_disk_bytes: int = 0
    to_coordinator_bytes: float = 0.0
    from_coordinator_bytes: float = 0.0
    to_store_bytes: float = 0.0
    from_store_bytes: float = 0.0
    processor_part: float = 0.0
    base_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change, and what it leads to, as planned again with it.

    Attributes:
        change: in words.
        round_s, tokens_per_s, days: of the plan with it.
        faster: tokens in a second with it, as a multiple of those without; planned with as few clients.
        loss: with it, as a multiple of that without (`epochal/tools/quality.py`); None if that was not measured.
    """

    change: str
    round_s: float
    tokens_per_s: float
    days: float
    faster: float
    loss: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The predicted course of a run; the defaults are those of one that never reaches a round.

    Attributes:
        sizes: of the run.
        client_count, played_count: number of clients, and of those that were played one by one.
        batches, tokens: of a round.
        round_s: time from one round to the next.
        parts: seconds of a round by part (`PARTS`), along what determines when it ends; they add up to `round_s`.
        tokens_per_s: tokens that the run applies in a second, with the time between epochs.
        groups: the clients.
        machines: what the machines need.
        warm_up_s: from the first Warmup to the first round.
        checkpoint_s: of Cooldown, in which a checkpoint is written; None if it does not come about in time.
        between_epochs_s: from the last round of an epoch to the first of the next one; None as before.
        epochs: number of epochs to the end.
        days: to the end; infinite if it is not reached.
        step, count: of the first round of these settings, and their number.
        bottleneck: what a round waits for most, in words.
        kind: its part, as in `PARTS`, or "nothing" if the run goes no further.
        limit: what makes that part as long as it is: "client", "server", "latency" or "machine".
        warnings: what cannot hold, such as timers.
        loss: as a multiple of that of one machine with the same tokens; None if that was not measured.
        loss_source: how it was measured, and what of it was not, in words.
        suggestions: what to change, the most effective first.
        later: of the run's later settings (`[[changes]]`) with other rounds, each with its own days without epochs; all
            other figures but the days and epochs are of the next round.
    """

    sizes: RunSizes
    client_count: int
    bottleneck: str
    warnings: tuple[str, ...]
    kind: str = "nothing"
    limit: str = "machine"
    played_count: int = 0
    batches: int = 0
    tokens: float = 0.0
    round_s: float = math.inf
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    tokens_per_s: float = 0.0
    groups: tuple[GroupPlan, ...] = ()
    machines: Machines = field(default_factory=Machines)
    warm_up_s: float = math.inf
    checkpoint_s: float | None = None
    between_epochs_s: float | None = None
    epochs: int = 0
    days: float = math.inf
    step: int = 0
    count: int = 0
    loss: float | None = None
    loss_source: str = ""
    suggestions: tuple[Suggestion, ...] = ()
    later: tuple["Plan", ...] = ()

    @property
    def training_part(self) -> float:
        """The part of the clients' time that is training, on average."""
        count = sum(plan.group.count for plan in self.groups)
        trained_s = sum(plan.group.count * plan.parts["training"] for plan in self.groups)
        return trained_s / (count * self.round_s) if count else 0.0


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of a plan.

    Attributes:
        links: of the coordinator, and of the object store.
        costs: of the machines' work.
        parameter_count: of the model, where its spec does not say it.
        most_played: see `MAX_PLAYED_CLIENTS`.
    """

    links: Links = field(default_factory=Links)
    costs: Costs = field(default_factory=Costs)
    parameter_count: int | None = None
    most_played: int = MAX_PLAYED_CLIENTS
