"""Writes a run's rounds to sinks as they end, each sink from where it had got to.

Theory of operation. Every sink has a feed of its own, so a slow one holds nobody up, and one that is behind catches up
alone. A row is written, kept, and only then is the next one asked for. An evaluation is kept with the first round that
ends after it was recorded. For those that come after the last round its row is written again: a follower reads the row
before the one that it lacks, whose end says which evaluations a sink has. A run that went back to a backup has another
lineage, which a sink takes as a history of its own.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from epochal.coordinator_client.round_feed import OtherLineage, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.json_lines import JsonLinesSink
from epochal.view.sinks.sink import FigureSink, with_evaluations
from epochal.view.sinks.tensorboard_sink import TensorBoardSink
from epochal.view.sinks.wandb_sink import WandbSink

ALLOWED = "jsonl:FILE, tensorboard:DIR or wandb:PROJECT"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Options for following a run.

    Attributes:
        is_once: whether to end with the rounds that have ended, instead of with the run.
        policy: how long to retry when the coordinator does not answer.
        say: called with a line for each event.
    """

    is_once: bool
    policy: RetryPolicy
    say: Callable[[str], None]


def named_sink(text: str) -> FigureSink:
    """Return the sink that a `--to` names, not open.

    Raises:
        InvalidInput: there is no such sink, or its place cannot be used.
        ExtraMissing: a package is missing.
    """
    kind, _, place = text.partition(":")
    path = Path(place)
    if kind not in ("jsonl", "tensorboard", "wandb") or not place.strip():
        raise InvalidInput(f"--to {text}: allowed: {ALLOWED}")
    if kind == "jsonl":
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidInput(f"--to {text}: allowed: a file in a folder that exists")
        return JsonLinesSink(path)
    if importlib.util.find_spec(kind) is None:
        raise ExtraMissing(f"--to {text} needs {kind}: pip install 'epochal[{kind}]'")
    if kind == "wandb":
        return WandbSink(place)
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"--to {text}: allowed: a folder, which is made if it does not exist")
    return TensorBoardSink(path)


async def follow_into(client: ViewerClient, sinks: Sequence[FigureSink], options: FollowOptions) -> None:
    """Write the run's rounds to each of the sinks until it has finished.

    Raises:
        InvalidInput: a sink belongs to another run.
        SinkFailed: one cannot keep a row.
        CoordinatorUnreachable, Refused, InvalidDocument: as `RoundFeed.all`.
    """
    async with asyncio.TaskGroup() as tasks:
        for sink in sinks:
            tasks.create_task(_follow(client, sink, options))


async def _follow(client: ViewerClient, sink: FigureSink, options: FollowOptions) -> None:
    def say(text: str) -> None:
        options.say(f"{sink.name}: {text}")

    feed = RoundFeed(client, options.policy, options.say)
    last: RoundFigures | None = None
    try:
        first = await _opened(sink, feed, client.run_id, await feed.run_lineage())
        say(f"begins with round {first}")
        async with aclosing(feed.present() if options.is_once else feed.all()) as news:
            async for one in news:
                if isinstance(one, OtherLineage):
                    await asyncio.to_thread(sink.close)
                    first, last = await _opened(sink, feed, client.run_id, one.lineage), None
                    say(f"the run went back and has another lineage; begins with round {first}")
                    continue
                rows = one.page.rounds.rows()
                known = [row for row in rows if row.next_number <= first]
                since_s = max((row.ended_s for row in (last, *known) if row is not None), default=0.0)
                last = rows[-1]
                for group, found in with_evaluations(rows[len(known) :], await feed.evaluations(), since_s):
                    await asyncio.to_thread(sink.write, group, found)
        if last is not None:
            later = [one for one in await feed.evaluations() if one.recorded_s > last.ended_s]
            if later:
                await asyncio.to_thread(sink.write, [last], later)
    finally:
        await asyncio.to_thread(sink.close)
    say(f"written up to round {feed.next - 1}")


async def _opened(sink: FigureSink, feed: RoundFeed, run_id: str, lineage: str) -> int:
    """Open the sink, and let the feed begin one round before the first one that it lacks, whose number is returned."""
    first = await asyncio.to_thread(sink.open, run_id, lineage)
    feed.seek(max(0, first - 1), lineage)
    return first
