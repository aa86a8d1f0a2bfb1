"""Room for blobs: how much a run needs of `[blobs] max_total_bytes`, and a warning as soon as it is known to lack some.

The rule kept here: two checkpoints, and the results and updates of two rounds, find room. With less, an epoch ends
after a single round, and with still less some results of each round are refused. Where checkpoints are made while
rounds go on (`config.checkpoint_every`), a third checkpoint and all rounds since the older of two find room too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from epochal.coordinator.machine.parts.run_models import KEEP_CHECKPOINTS
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.service import CoordinatorService
from epochal.state.errors import Refused, StoreFailed
from epochal.state.model.replica import CheckpointForm
from epochal.state.results import result_size_bound
from epochal.state.updates import UpdateRule, update_size_bound

log = logging.getLogger(__name__)

ROUNDS_WITH_ROOM = 2
"""Number of rounds whose results must find room beside the kept checkpoints."""
CHECK_EVERY_S = 10.0


def room_needed(checkpoint_bytes: int, result_bytes: int, update_bytes: int, clients: int, every: int) -> int:
    """Return the smallest `max_total_bytes` for checkpoints, and the results and updates of rounds.

    Args:
        checkpoint_bytes, result_bytes, update_bytes: size of each.
        clients: number of results of a round.
        every: `config.checkpoint_every`.
    """
    round_bytes = clients * result_bytes + update_bytes
    return checkpoints_with_room(every) * checkpoint_bytes + rounds_with_room(every) * round_bytes


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
        needed = room_needed(form.size_bound, result_bytes, update_bytes, count, every)
        if needed > most:
            log.warning(
                "blobs_need_more_room",
                extra={
                    "max_total_bytes": most,
                    "needed_for": f"{checkpoints_with_room(every)} checkpoints, and the results and updates "
                    f"of {rounds} rounds of {count} clients",
                    "consequence": "epochs end early, or results are refused as blobs-full",
                    "write": f"max_total_bytes = {needed} in [blobs], and {rounds * result_bytes} more for "
                    "each further client; then start again",
                },
            )


def _client_count(run: Run) -> int:
    """Return the number of clients that a round has, at least those with which the run starts."""
    in_round = 0 if run.round is None else len(run.round.tasks.roster.clients)
    return max(run.state_file.config.init_min_clients, in_round)
