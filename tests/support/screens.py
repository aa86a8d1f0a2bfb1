"""The text on the screen of a textual application that runs under its pilot."""

import asyncio
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from tests.support.bounds import BOUND_S


def screen_text(app: App[Any]) -> str:
    """Return the lines on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def until_shown(pilot: Pilot[Any], *texts: str) -> str:
    """Return what is on the screen once all these texts are."""
    try:
        async with asyncio.timeout(BOUND_S):
            while not all(text in (found := screen_text(pilot.app)) for text in texts):
                await pilot.pause(0.02)
    except TimeoutError:
        raise AssertionError(f"{texts} are not on the screen:\n{screen_text(pilot.app)}") from None
    return found
