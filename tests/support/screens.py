"""The text on the screen of a textual application that runs under its pilot."""

import asyncio
import re
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from tests.support.bounds import BOUND_S


def screen_text(app: App[Any]) -> str:
    """Return the lines on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def _on_one_line(text: str) -> str:
    """Return a text with one space in place of each gap: where its lines break depends on how long its numbers are."""
    return re.sub(r"\s+", " ", text)


async def until_shown(pilot: Pilot[Any], *texts: str) -> str:
    """Return what is on the screen once all these texts are, wherever their lines break."""
    wanted = [_on_one_line(text) for text in texts]
    try:
        async with asyncio.timeout(BOUND_S):
            while True:
                found = screen_text(pilot.app)
                if all(text in _on_one_line(found) for text in wanted):
                    return found
                await pilot.pause(0.02)
    except TimeoutError:
        raise AssertionError(f"{texts} are not on the screen:\n{screen_text(pilot.app)}") from None
