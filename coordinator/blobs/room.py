"""Room for blobs: how much a run needs of `[blobs] max_total_bytes`, and a warning as soon as it is known to lack some.

The rule kept here: two checkpoints, and the results and updates of two rounds, find room. With less, an epoch ends
after a single round, and with still less some results of each round are refused. Where checkpoints are made while
rounds go on (`config.checkpoint_every`), a third checkpoint and all rounds since the older of two find room too, and
where clients reveal their inner states, those of all results that may be open at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from epochal.coordinator.machine.parts.run_models import KEEP_CHECKPOINTS
from epochal.coordinator.machine.parts.verification import MAX_KNOWN
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.service import CoordinatorService
from epochal.state.config.state_file import StateFile
from epochal.state.errors import Refused, StoreFailed
from epochal.state.model.replica import CheckpointForm
from epochal.state.replays.inner_states import inner_state_size_bound
from epochal.state.results import result_size_bound
from epochal.state.updates import UpdateRule, update_size_bound

log = logging.getLogger(__name__)

ROUNDS_WITH_ROOM = 2
"""Number of rounds whose results must find room beside the kept checkpoints."""
KEPT_REPLAYS = 2 * MAX_KNOWN + 1
"""Number of replays that are kept for tests of verifiers."""
ROUNDS_UNTIL_DROPPED = 2
"""Number of rounds beyond `verify.within` in which a replay may still be kept."""
STATES_OF_A_RESULT = 2
CHECK_EVERY_S = 10.0


def room_needed(
    checkpoint_bytes: int, result_bytes: int, update_bytes: int, clients: int, every: int, revealed_bytes: int = 0
) -> int:
    """Return the smallest `max_total_bytes` for checkpoints, and the results and updates of rounds.

    Args:
        checkpoint_bytes, result_bytes, update_bytes: size of each.
        clients: number of results of a round.
        every: `config.checkpoint_every`.
        revealed_bytes: size of all that `replays_with_states` need.
    """
    round_bytes = clients * result_bytes + update_bytes
    return checkpoints_with_room(every) * checkpoint_bytes + rounds_with_room(every) * round_bytes + revealed_bytes


def replays_with_states(state: StateFile, clients: int) -> int:
    """Return the number of replays for which results and inner states must find room; 0 where clients reveal none.

    Those that are drawn while one may be open, one of each new key, and those by which verifiers are tested.
    """
    if not state.reveals_inner_states or state.verify is None:
        return 0
    rounds = state.verify.within + ROUNDS_UNTIL_DROPPED
    drawn = -(-state.verify.percent * clients * rounds // 100)
    return min(clients * rounds, clients + drawn) + KEPT_REPLAYS


def revealed_room(state: StateFile, clients: int, result_bytes: int, state_bytes: int) -> int:
    """Return the bytes that the replays of a run with so many clients keep, where these reveal their inner states."""
    return replays_with_states(state, clients) * (result_bytes + STATES_OF_A_RESULT * state_bytes)


def checkpoints_with_room(every: int) -> int:
    """Return the number of checkpoints that must find room: while rounds go on, one more is received."""
    return KEEP_CHECKPOINTS + (1 if every else 0)


def rounds_with_room(every: int) -> int:
    """Return the number of rounds whose results must find room: also those since the older of two checkpoints."""
    return KEEP_CHECKPOINTS * every + ROUNDS_WITH_ROOM


class BlobRoom:
    """Warns when `max_total_bytes` is too small for the run's model and clients: once for each larger number of them.

    Args:
        service: the run's.
        form: returns which values the run's checkpoints have, once it has one; `Refused` before that.
    """

    def __init__(self, service: CoordinatorService, form: Callable[[], Awaitable[CheckpointForm]]) -> None:
        self._service = service
        self._form = form
        self._checked_count = 0
        """The largest number of clients for which the room was checked."""

    async def run(self) -> None:
        """Check again and again, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_EVERY_S)

    async def check(self) -> None:
        """Warn if there is too little room for the clients that the run has now."""
        run = self._service.run
        count = _client_count(run)
        if count <= self._checked_count:
            return
        try:
            form = await self._form()
        except (Refused, StoreFailed):  # there is no checkpoint yet, or whoever needs it next reports why
            return
        self._checked_count = count
        rounds = rounds_with_room(run.state_file.config.checkpoint_every)
        result_bytes = result_size_bound(form.layout, run.state_file.merge.codec_name)
        every, most = run.state_file.config.checkpoint_every, run.state_file.blobs.max_total_bytes
        update_bytes = update_size_bound(form.layout, UpdateRule.of(run.state_file.merge))
        state_bytes = inner_state_size_bound(form.layout)
        revealed = [revealed_room(run.state_file, clients, result_bytes, state_bytes) for clients in (count, count + 1)]
        needed = room_needed(form.size_bound, result_bytes, update_bytes, count, every, revealed[0])
        of_another = rounds * result_bytes + revealed[1] - revealed[0]
        if needed > most:
            log.warning(
                "blobs_need_more_room",
                extra={
                    "max_total_bytes": most,
                    "needed_for": f"{checkpoints_with_room(every)} checkpoints, and the results and updates "
                    f"of {rounds} rounds of {count} clients"
                    + (", and the inner states that they reveal" if revealed[0] else ""),
                    "consequence": "epochs end early, or results are refused as blobs-full",
                    "write": f"max_total_bytes = {needed} in [blobs], and {of_another} more for each further client; "
                    "then start again",
                },
            )


def _client_count(run: Run) -> int:
    """Return the number of clients that a round has, at least those with which the run starts."""
    in_round = 0 if run.round is None else len(run.round.tasks.roster.clients)
    return max(run.state_file.config.init_min_clients, in_round)
