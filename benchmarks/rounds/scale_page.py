"""The page of many members: tables of what was measured, plots, and what each column means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.plots import line_plot
from benchmarks.rounds.scale_load import JOINED_AT_ONCE, WARMING_ROUNDS, Case, Measured

FLAT_FROM, FLAT_TO = 500, 10_000
"""Numbers of members between which the processor time of each is to be the same."""
KB = 1000
ROUND_TARGET, CPU_TARGET, MEMORY_TARGET = "≤ 25 s", "≤ 1.5 ms, ≤ 1.3 x", "≤ 40 KB"
COLUMNS: Mapping[str, Callable[[Measured], str]] = {
    "members": lambda found: f"{found.case.members:,}",
    "kept in": lambda found: found.case.store,
    "a round, s": lambda found: f"{found.round_s:.2f}",
    "processor, ms": lambda found: f"{found.cpu_s * 1000:.2f}",
    "database, ms": lambda found: f"{found.database_cpu_s * 1000:.2f}" if found.case.replicas else "",
    "load, ms": lambda found: f"{found.own_cpu_s * 1000:.2f}",
    "99 %, s": lambda found: f"{found.p99_s:.3f}",
    "memory, KB": lambda found: f"{found.member_bytes / KB:.1f}",
    "journal, bytes": lambda found: f"{found.journal_bytes:,.0f}",
    "written ahead, bytes": lambda found: f"{found.wal_bytes:,.0f}" if found.case.replicas else "",
    "joins, s": lambda found: f"{found.joined_s:.1f}",
    "first round, s": lambda found: f"{found.ready_s:.1f}",
    "again": lambda found: f"{found.conflicts:.1f}" if found.case.replicas else "",
}
MEANINGS = (
    "*a round*: median time from one RoundTrain to the next, with every member's result counted and attested.",
    "*processor*: processor time of all coordinators for one member's part of a round; *database*: PostgreSQL's; "
    "*load*: the load generator's.",
    "*99 %*: time from a round's beginning until so many of the waiting members have received the document.",
    "*memory*: growth of the coordinator's resident memory from an empty run, for each member; of several "
    "replicas, the largest. With few members it shows what the process needs once.",
    "*journal*: growth for one member's part of a round; *written ahead*: of the database's write-ahead log "
    "(compressed).",
    f"*joins*: all of them, {JOINED_AT_ONCE} at a time; *first round*: from then until the first RoundTrain began, "
    "with everyone ready.",
    "*again*: groups of messages for each round that a replica handled again because another one had appended first.",
)


@dataclass(frozen=True, slots=True)
class Missing:
    """A case that was not measured, and why."""

    case: Case
    reason: str


Row = Measured | Missing


def table(rows: Sequence[Row]) -> str:
    """Return a table of Markdown with a row for each case."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        if isinstance(row, Measured):
            cells = [cell(row) for cell in COLUMNS.values()]
        else:
            cells = [f"{row.case.members:,}", row.case.store, f"not measured: {row.reason}"]
            cells += [""] * (len(COLUMNS) - len(cells))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def text(rows: Sequence[Row], load: str) -> str:
    """Return the part of the page below the figures.

    Args:
        rows: the cases.
        load: the load of the machine in words.
    """
    meanings = "\n".join(f"- {meaning}" for meaning in MEANINGS)
    about = (
        "Every number of processor time, memory and bytes is for one member; times of a round are whole. "
        f"{WARMING_ROUNDS} rounds before the measured ones are not counted. {load}"
    )
    refused = [
        f"- *refused*, {row.case.name}: {', '.join(f'{count} of `{kind}`' for kind, count in row.refusals.items())}"
        for row in rows
        if isinstance(row, Measured) and row.refusals
    ]
    told = "\n".join([meanings, *refused])
    return f"## Members, stores and replicas\n\n{table(rows)}\n\n{about}\n\n{told}"


def case_figures(found: Measured) -> list[Figure]:
    """Return the figures of one case that a short table shows."""
    name = found.case.name
    target, refused = "" if found.case.replicas else "≤ 1.5 ms", sum(found.refusals.values())
    return [
        Figure(f"{name}: a round", found.round_s, "s"),
        Figure("coordinators' processor per member", found.cpu_s * 1000, "ms", target),
        Figure("until 99 % know of it", found.p99_s, "s", digits=3),
        *([Figure("refused requests", refused, "", "0", digits=0)] if refused else []),
    ]


def target_figures(rows: Sequence[Row]) -> list[Figure]:
    """Return the figures of one process on files that have targets."""
    found = [row for row in rows if isinstance(row, Measured) and row.case.replicas is None]
    missing = [row for row in rows if isinstance(row, Missing) and row.case.replicas is None]
    flat = [row.cpu_s * 1000 for row in found if FLAT_FROM <= row.case.members <= FLAT_TO]
    name = f"{FLAT_TO:,} members on files"
    largest = next((row for row in found if row.case.members == FLAT_TO), None)
    reason = next((row.reason for row in missing if row.case.members == FLAT_TO), "no such case")
    absent = "" if largest else reason
    return [
        Figure(
            f"{name}: a round", None if largest is None else largest.round_s, "s", ROUND_TARGET, baseline_name=absent
        ),
        Figure(
            f"processor time per member and round, {FLAT_FROM} to {FLAT_TO:,}: the most",
            max(flat) if flat else None,
            "ms",
            CPU_TARGET,
            min(flat) if flat else None,
            f"the least of these {len(flat)}",
        ),
        Figure(
            f"{name}: memory of the coordinator, per member",
            None if largest is None else largest.member_bytes / KB,
            "KB",
            MEMORY_TARGET,
            baseline_name=absent,
        ),
    ]


def plots(rows: Sequence[Row]) -> dict[str, str]:
    """Return the plots, by name; none where nothing was measured."""
    found = [row for row in rows if isinstance(row, Measured)]
    if not found:
        return {}
    members = "members"

    def lines(value: Callable[[Measured], float]) -> dict[str, list[tuple[float, float]]]:
        drawn: dict[str, list[tuple[float, float]]] = {}
        for row in found:
            drawn.setdefault(row.case.store, []).append((row.case.members, value(row)))
        return drawn

    drawn = {
        "scale-rounds": line_plot(lines(lambda row: row.round_s), members, "seconds a round", "logarithmic"),
        "scale-processor": line_plot(
            lines(lambda row: row.cpu_s * 1000), members, "processor time per member and round, ms", "from zero"
        ),
        "scale-latency": line_plot(
            lines(lambda row: row.p99_s), members, "seconds until 99 % have heard of a round", "logarithmic"
        ),
    }
    replicated: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        if row.case.replicas is not None:
            replicated.setdefault(f"{row.case.members:,} members", []).append((row.case.replicas, row.round_s))
    if replicated:
        drawn["scale-replicas"] = line_plot(replicated, "replicas on PostgreSQL", "seconds a round", "logarithmic")
    return drawn
