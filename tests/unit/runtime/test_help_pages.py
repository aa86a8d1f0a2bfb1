"""The pages that explain a refusal: one for each kind, without anything loaded or executed."""

import httpx
import pytest
from starlette.applications import Starlette

from runtime.explanations import explanations
from runtime.help_pages import help_routes, html_of
from runtime.problem_json import problem_response
from state.errors import Refused
from state.refusals import Refusal


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
