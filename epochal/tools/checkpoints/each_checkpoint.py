"""Takes one checkpoint of a run, or every new one while the run continues: shared by the commands that read them."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from epochal.cli.durations import shown_duration
from epochal.data_providers.protocol import SourceUnavailable
from epochal.runtime.retry import RetryPolicy
from epochal.state.documents import CheckpointRef
from epochal.state.errors import CoordinatorUnreachable, InvalidInput, ModelUnavailable, Refused, StoreBlocked
from epochal.state.refusals import Refusal, Retry
from epochal.tools.checkpoints.readable_run import RunView, WatchedRun

MAX_MISSED_CHECKPOINTS = 3
"""Number of times that the newest checkpoint is deleted, because newer ones were made, before it has been read."""
PASSING = (CoordinatorUnreachable, ModelUnavailable, SourceUnavailable, StoreBlocked)
"""Errors after which a followed run is read again."""

Say: TypeAlias = Callable[[str], None]
"""Receives a line for people."""
Take: TypeAlias = Callable[[RunView, CheckpointRef], Awaitable[None]]
"""Does something with a checkpoint of the run."""


async def take_checkpoint(run: WatchedRun, step: int | None, take: Take) -> CheckpointRef:
    """Take the checkpoint of a step, or the newest, and return it.

    Raises:
        InvalidInput: there is no such checkpoint.
    """
    for attempt in range(1, MAX_MISSED_CHECKPOINTS + 1):
        view = await run.now()
        reference = _checkpoint(view, step)
        try:
            await take(view, reference)
            break
        except Refused as error:
            is_gone = error.kind is Refusal.NOT_FOUND and step is None
            if not is_gone or attempt == MAX_MISSED_CHECKPOINTS:
                raise
    return reference


async def follow_checkpoints(run: WatchedRun, take: Take, policy: RetryPolicy, say: Say, *, ends: bool = True) -> None:
    """Take the newest checkpoint, and every later one, until the run has finished.

    Args:
        run: the run.
        take: called again for the same checkpoint after an error that passes.
        policy: how long to retry when the coordinator, or something else that is needed, fails.
        say: is notified of what is waited for.
        ends: whether a finished run is followed no further; it may go back, and go on.
    """
    backoff = policy.begin()
    view: RunView | None = None
    done: CheckpointRef | None = None
    waits = False
    while not ends or view is None or not view.is_finished or _is_newer(view, done):
        try:
            if view is None:
                view = await run.now()
                if not view.is_finished:
                    say(_next_due(view))
            else:
                view = await run.news(view)
            if done is not None and _went_back(view, done):
                done = None
            for reference in view.checkpoints[-1:] if done is None else view.checkpoints:
                if done is None or reference.step > done.step:
                    await take(view, reference)
                    done = reference
            backoff.reset()
            waits = False
        except (*PASSING, Refused) as error:
            if isinstance(error, Refused) and error.kind.retry is not Retry.LATER:
                if error.kind is not Refusal.NOT_FOUND:
                    raise
                continue  # newer checkpoints have been made meanwhile
            if not waits:
                say(f"waiting: {error}; trying again for up to {policy.bound_s:.0f} s")
            waits = True
            await backoff.wait(error)


def _is_newer(view: RunView, done: CheckpointRef | None) -> bool:
    return _newest_step(view) > (-1 if done is None else done.step) or (done is not None and _went_back(view, done))


def _went_back(view: RunView, done: CheckpointRef) -> bool:
    """Return whether the run went back to before a checkpoint that was taken, and may make another of its step."""
    newest = view.checkpoints[-1] if view.checkpoints else None
    return newest is not None and newest.step <= done.step and newest != done


def _next_due(view: RunView) -> str:
    """Return when a run's next checkpoint is made."""
    config, newest = view.state.config, max(0, _newest_step(view))
    at_the_end = f"at the end of the epoch, after {shown_duration(config.epoch_time)} at the latest"
    if not config.checkpoint_every:
        return f"the next checkpoint is due {at_the_end} (config.checkpoint_every is 0)"
    return f"the next checkpoint is due after step {newest + config.checkpoint_every}, or {at_the_end}"


def _checkpoint(view: RunView, step: int | None) -> CheckpointRef:
    if not view.checkpoints:
        raise InvalidInput(f"run {view.state.run_id} has no checkpoint yet")
    if step is None:
        return view.checkpoints[-1]
    for reference in view.checkpoints:
        if reference.step == step:
            return reference
    held = ", ".join(str(reference.step) for reference in view.checkpoints)
    raise InvalidInput(f"run {view.state.run_id} holds no checkpoint of step {step}; allowed: {held}")


def _newest_step(view: RunView) -> int:
    return view.checkpoints[-1].step if view.checkpoints else -1
