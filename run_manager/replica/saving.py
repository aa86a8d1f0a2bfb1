"""Saving the newest replica for a client's owner, beside the run: at a bounded rate, and the last one at the end."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from epochal.run_manager.replica.merged_outcomes import HeldReplica
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import ModelUnavailable

log = logging.getLogger(__name__)

MIN_INTERVAL_S = 60.0
"""Minimum time between two saved replicas."""
MAX_TIME_PART = 0.05
"""Maximum part of the time in which replicas are saved."""

SaveReplica: TypeAlias = Callable[[StateFile, ModelSpec, HeldReplica], Awaitable[None]]
"""Keeps a replica of a run with this state file and model. See `ClientDependencies.save_replica`."""


class HoldsReplicas(Protocol):
    """A `ReplicaKeeper`, as it is needed here."""

    @property
    def held(self) -> HeldReplica | None: ...

    async def other_than(self, step: int | None) -> HeldReplica: ...


class ReplicaSaving:
    """Saves the newest replica that a client holds.

    Args:
        keeper: holds the replicas.
        save: keeps one.
        policy: its clock and sleep are the client's.
    """

    def __init__(
        self, keeper: HoldsReplicas, save: Callable[[HeldReplica], Awaitable[None]], policy: RetryPolicy
    ) -> None:
        self._keeper = keeper
        self._save = save
        self._policy = policy
        self._saved_digest: str | None = None
        self._warned_of = ""

    async def run(self) -> None:
        """Save the first replica, and then the newest from time to time, until cancelled.

        Raises:
            InvalidInput: none can ever be saved.
        """
        step, took_s = await self._save_other_than(None)
        while True:
            await self._policy.sleep(max(MIN_INTERVAL_S, took_s / MAX_TIME_PART))
            step, took_s = await self._save_other_than(step)

    async def _save_other_than(self, step: int | None) -> tuple[int, float]:
        """Save a replica of another step; return its step and the seconds that it took. None stays held here after."""
        held = await self._keeper.other_than(step)
        began_s = self._policy.clock.monotonic_s()
        await self._attempt(held)
        return held.step, self._policy.clock.monotonic_s() - began_s

    async def finish(self) -> None:
        """Save the replica that is held, unless it is saved."""
        held = self._keeper.held
        if held is not None and held.digest != self._saved_digest:
            await self._attempt(held)

    async def _attempt(self, held: HeldReplica) -> None:
        try:
            await self._save(held)
        except ModelUnavailable as error:
            if error.message != self._warned_of:
                self._warned_of = error.message
                log.warning("replica_not_saved", extra={"step": held.step, "reason": error.message})
        else:
            self._saved_digest, self._warned_of = held.digest, ""
