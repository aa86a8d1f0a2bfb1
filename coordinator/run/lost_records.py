"""Continuing where the journal lacks records that it held: readers have seen their content, which is void.

A database failed over to a server that lacks the last records, or somebody restored it while coordinators served the
run. Whoever notices gives the run, as the journal has it, a new lineage; readers follow, as after a start with
`--restored`, and everybody else learns it from the journal.
"""

from collections.abc import Callable

from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.parts.run_identity import lineage_of
from epochal.coordinator.machine.records import Watch
from epochal.coordinator.machine.stimuli import CoordinatorStarted, RunRestored, Stamped
from epochal.coordinator.proof.kept_blobs import check_blobs_are_there
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.run_journal import RunJournal
from epochal.runtime.clock import RunClock
from epochal.state.errors import StoreBlocked, StoreConflict
from epochal.state.wire import Seed

MAX_ATTEMPTS = 16
"""Maximum number of times that a lineage is given while other coordinators append first."""


async def catch_up(
    journal: RunJournal,
    options: ServiceOptions,
    clock: RunClock,
    execute: Callable[[Instruction], None],
    watch: Watch | None = None,
) -> bool:
    """Read what other coordinators have appended, and end the run's doubt; return whether there was any news.

    Args:
        journal: of the run.
        options: its store, and where seeds come from.
        clock: the run's.
        execute: called with what follows from a new lineage.
        watch: called with each stimulus that others have appended.

    Raises:
        StoreBlocked: the journal cannot be read or written now, or others append first each time; the doubt stays.
        StoreFailed: it never will be, or blobs are missing that the run needs.
    """
    is_news = await journal.catch_up(watch)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        clock.not_before(journal.run.clock.now_s)
        if not journal.is_doubtful:
            return is_news or attempt > 1
        await check_blobs_are_there(journal.run, options.store.blobs, options.store.name)
        try:
            instructions = await _disown(journal, options, clock.now_s())
        except StoreConflict:
            await journal.catch_up(watch)
            continue
        for instruction in instructions:
            execute(instruction)
        return True
    raise StoreBlocked(f"{options.store.name}: others appended first {MAX_ATTEMPTS} times", is_full=False)


async def _disown(journal: RunJournal, options: ServiceOptions, now_s: float) -> list[Instruction]:
    """Give the run a new lineage; the time since its last record counts as an outage."""
    run, instructions = journal.run, list[Instruction]()
    stamped = [
        Stamped(stimulus, now_s, Seed(options.new_seed()))
        for stimulus in (CoordinatorStarted(), RunRestored(lineage_of(options.new_seed())))
    ]
    for stimulus in stamped:
        run, more = handle(run, stimulus)
        instructions += more
    await journal.append(run, tuple(stamped), ends_segment=False)
    return instructions
