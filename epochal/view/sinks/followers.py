"""Writes a run's rounds to sinks as they end, each sink from where it had got to.

Theory of operation. Every sink has a feed of its own, so a slow one holds nobody up, and one that is behind catches up
alone. A row is written, kept, and only then is the next one asked for. A run that went back to a backup has another
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
from epochal.view.sinks.json_lines import JsonLinesSink
from epochal.view.sinks.sink import FigureSink
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
    try:
        lineage = await feed.run_lineage()
        feed.seek(await asyncio.to_thread(sink.open, client.run_id, lineage), lineage)
        say(f"begins with round {feed.next}")
        async with aclosing(feed.present() if options.is_once else feed.all()) as news:
            async for one in news:
                if isinstance(one, OtherLineage):
                    await asyncio.to_thread(sink.close)
                    feed.seek(await asyncio.to_thread(sink.open, client.run_id, one.lineage), one.lineage)
                    say(f"the run went back and has another lineage; begins with round {feed.next}")
                else:
                    await asyncio.to_thread(sink.write, one.page.rounds.rows())
    finally:
        await asyncio.to_thread(sink.close)
    say(f"written up to round {feed.next - 1}")
