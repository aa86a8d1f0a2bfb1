"""What tests in a browser share: one browser for all of them, in one event loop."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.browser.browser import chromium

if TYPE_CHECKING:
    from playwright.async_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in the loop of the browser."""
    for item in items:
        if "tests/browser/" in item.nodeid:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """Chromium, for all tests of this process."""
    async with chromium() as started:
        yield started
