"""The part of the page that says how to join: the exact command, what the machine must have, and copying."""

import hashlib
import shlex
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from tests.support.browser.browser import opened
from tests.support.browser.played_answers import play
from tests.support.data.states import state_file
from tests.support.deployment import parsed_command
from tests.support.drive.served import GENESIS, Served, served_over_sockets, training
from tests.support.servers.certificates import self_signed

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CODE = "an 'odd' code; $(id)"
JOINS = "Command that joins"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def inviting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A run that needs an invitation, whose data are on a server without TLS."""
    location, access = {"Server": "data.example:9000"}, {"mode": "invitations", "invitations": ["ab" * 32]}
    folder = tmp_path_factory.mktemp("inviting")
    async with served_over_sockets(folder, GENESIS, model__LLM__data_location=location, access=access) as run:
        yield run


async def shown(page: "Page", run: Served, place: str = "join") -> None:
    await page.goto(f"{run.http.base_url}/#/{place}")
    await page.get_by_label(JOINS, exact=True).wait_for()


async def command(page: "Page", label: str = JOINS) -> list[str]:
    return shlex.split(await page.get_by_label(label, exact=True).inner_text())


async def test_command_is_what_the_client_takes(browser: "Browser", inviting: Served) -> None:
    async with opened(browser) as (page, complaints):
        await shown(page, inviting)
        await page.get_by_label("Invitation code").fill(CODE)
        await page.get_by_label("Name", exact=True).fill("lab 1")
        words = await command(page)
        address = str(inviting.http.base_url).rstrip("/")
        assert words[:3] == ["epochal", "client", address]
        expected = {"--trainer": "numpy", "--invitation": CODE, "--name": "lab 1", "--key": "me.key"}
        assert {name: words[words.index(name) + 1] for name in expected} == expected
        assert {"--new-key", "--insecure"} <= set(words)
        ran = CliRunner().invoke(app, [*words[1:], "--help"])
        assert ran.exit_code == 0, ran.output
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_command_has_a_placeholder_until_the_code_is_known(browser: "Browser", inviting: Served) -> None:
    async with opened(browser) as (page, _):
        await shown(page, inviting)
        assert "CODE" in await command(page)


async def test_command_that_talks_to_the_run_is_what_the_program_takes(browser: "Browser", inviting: Served) -> None:
    async with opened(browser) as (page, complaints):
        await shown(page, inviting)
        words = await command(page, "Command that talks to the run")
        assert words == ["epochal", "sample", str(inviting.http.base_url).rstrip("/"), "--chat"]
        ran = CliRunner().invoke(app, [*words[1:], "--help"])
        assert ran.exit_code == 0, ran.output
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_facts_are_those_of_the_api(browser: "Browser", tmp_path: Any) -> None:
    async with served_over_sockets(tmp_path, GENESIS) as run:
        await training(run, 2)
        guide = (await run.http.get(f"{run.run_url}/join")).json()
        async with opened(browser) as (page, _):
            await shown(page, run)
            facts = await page.locator("dl.facts").inner_text()
            assert "anyone may join" in facts
            assert "None: it computes on the processor." in facts
            assert await command(page, "Command that checks the machine") == [
                *("epochal", "doctor", str(run.http.base_url).rstrip("/"))
            ]
            assert f"{guide['room']['parameter_count']} parameters" in facts
            assert f"{guide['room']['spool_bytes'] / 1000:.3g} kB for temporary files (" in facts
            assert guide["version"] in facts
            assert await page.get_by_label("Invitation code").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("is_permitted", [True, False])
async def test_command_is_copied_with_and_without_permission(
    browser: "Browser", inviting: Served, is_permitted: bool
) -> None:
    permissions = ["clipboard-read", "clipboard-write"] if is_permitted else []
    async with opened(browser, permissions=permissions) as (page, _):
        if not is_permitted:  # as on a page without TLS, from another machine
            await page.add_init_script("delete Navigator.prototype.clipboard")
        await shown(page, inviting)
        wanted = await page.get_by_label(JOINS, exact=True).inner_text()
        block = page.locator(".copyable", has=page.get_by_label(JOINS, exact=True))
        await block.get_by_role("button", name="Copy").press("Enter")
        await block.get_by_text("Copied").wait_for()
        field = page.get_by_label("Invitation code")
        await field.focus()
        await page.keyboard.press("Control+V")
        assert await field.input_value() == wanted


async def test_commands_name_the_coordinators_own_certificate(browser: "Browser", tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    options = ServeOptions(str(tmp_path / "run"), Endpoint(port=0, tls_cert=certificate, tls_key=key), genesis=GENESIS)
    async with serving(state_file(), options) as running, opened(browser) as (page, _):
        await page.goto(f"{running.url}/#/join")
        await page.get_by_label(JOINS, exact=True).wait_for()
        for label in (JOINS, "Command that checks the machine"):
            _, parameters = parsed_command((await command(page, label))[1:])
            assert (parameters["url"], parameters["tls_ca"]) == (running.url, Path("cert.pem"))
        facts = await page.locator("dl.facts").inner_text()
        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).digest().hex(":").upper() in facts


@pytest.mark.nightly
async def test_torch_and_own_data_are_in_the_commands(browser: "Browser", inviting: Served) -> None:
    data = {"kind": "files", "places": ["data"], "place_count": 1, "own": True, "loopback": False, "insecure": False}
    guide = (await inviting.http.get(f"{inviting.run_url}/join")).json()
    async with opened(browser) as (page, _):
        await play(page, {"join": guide | {"trainer": "torch", "extras": ["torch", "parquet"], "data": data}})
        await shown(page, inviting)
        await page.get_by_label("Your copy of the data").fill("/my data")
        assert await command(page, "Command that installs") == ["pip", "install", ".[torch,parquet]"]
        words = await command(page)
        assert (words[words.index("--data") + 1], words[words.index("--trainer") + 1]) == ("/my data", "torch")
        assert "--insecure" not in words


@pytest.mark.nightly
async def test_run_that_cannot_be_asked_says_so(browser: "Browser", inviting: Served) -> None:
    problem = {"type": "urn:epochal:problem:overloaded", "detail": "too many <b>requests</b>", "status": 503}
    async with opened(browser) as (page, _):
        await page.route("**/v1/runs/*/join", lambda route: route.fulfill(status=503, json=problem))
        await page.goto(f"{inviting.http.base_url}/#/join")
        await page.get_by_text("too many <b>requests</b>").wait_for()
