"""The pages that explain a refusal: one for each kind, without anything loaded or executed."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from epochal.runtime.explanations import explanations
from epochal.runtime.http.help_pages import help_routes, html_of
from epochal.runtime.http.problem_json import problem_response
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal


@pytest.fixture
def http() -> httpx.AsyncClient:
    app = Starlette(routes=list(help_routes()))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service.example")


async def test_list_leads_to_every_kind(http: httpx.AsyncClient) -> None:
    page = await http.get("/help")
    assert page.headers["Content-Type"].startswith("text/html")
    for kind in explanations():
        assert f'<a href="help/{kind}">' in page.text


async def test_page_of_every_refusal_is_where_its_problem_says(http: httpx.AsyncClient) -> None:
    for kind in Refusal:
        answer = httpx.Response(kind.status, content=bytes(problem_response(Refused(kind, "no", size_bytes=1)).body))
        page = await http.get(answer.json()["help"])
        assert page.status_code == 200
        assert html_of(explanations()[kind].remedy) in page.text


@pytest.mark.parametrize("path", ["/nothing", "/v1/runs/a%2Fb/nothing", "/v1/runs/r/"])
async def test_help_of_a_problem_is_right_below_a_proxys_path(path: str) -> None:
    async def refuse(_: Request, error: Exception) -> Response:
        return problem_response(error)

    app = Starlette(routes=list(help_routes()), exception_handlers={HTTPException: refuse})

    async def below_a_path(scope: Any, receive: Any, send: Any) -> None:
        path, raw = scope["path"].removeprefix("/my-run"), scope["raw_path"].removeprefix(b"/my-run")
        await app({**scope, "path": path, "raw_path": raw}, receive, send)

    transport = httpx.ASGITransport(below_a_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
        answer = await client.get(f"/my-run{path}")
        page = await client.get(answer.url.join(answer.json()["help"]))
    assert str(page.url) == "http://proxy/my-run/help/not-found"
    assert page.status_code == 200


async def test_page_loads_and_executes_nothing(http: httpx.AsyncClient) -> None:
    page = await http.get("/help/store_failed")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "<script" not in page.text
    assert "http://" not in page.text


@pytest.mark.parametrize("kind", ["no-such-kind", "<script>", "%0A", "x" * 3000])
async def test_page_of_an_unknown_kind_is_not_found(http: httpx.AsyncClient, kind: str) -> None:
    assert (await http.get(f"/help/{kind}")).status_code == 404


def test_text_of_an_explanation_is_escaped() -> None:
    assert html_of("`a<b>` & <i>") == "<code>a&lt;b&gt;</code> &amp; &lt;i&gt;"
