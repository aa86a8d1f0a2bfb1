"""Answers of a coordinator that a test plays to a page in place of the real ones, and the requests that it makes."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.async_api import Page, Request, Route


async def play(page: "Page", answers: Mapping[str, Any]) -> None:
    """Answer the requests for these routes of the run, such as "members", with this JSON; all others as they are."""
    for place, answer in answers.items():
        await page.route(f"**/v1/runs/*/{place}", _answering(json.dumps(answer)))


def _answering(body: str) -> Any:
    async def answer(route: "Route") -> None:
        await route.fulfill(body=body, content_type="application/json")

    return answer


class Requests:
    """The requests that a page makes."""

    def __init__(self, page: "Page") -> None:
        self.made: list[Request] = []
        page.on("request", self._note)

    def _note(self, request: "Request") -> None:
        self.made.append(request)

    @property
    def hosts(self) -> set[str]:
        """The hosts and ports that they go to."""
        return {urlsplit(request.url).netloc for request in self.made if request.url.startswith(("http", "ws"))}
