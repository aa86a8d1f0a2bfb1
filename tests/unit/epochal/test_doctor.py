"""`epochal doctor`: what it finds of a machine, of the way to a real coordinator, and of what a run needs."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal import __version__
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.explanations import explanations
from epochal.runtime.http.http_server import Endpoint
from epochal.state.shown.join_guide import JoinData, JoinGuide, JoinRoom
from epochal.tools.doctor import connectivity
from epochal.tools.doctor import local_machine as doctored
from epochal.tools.doctor.connectivity import Asked, look_at_way, needs_of
from epochal.tools.doctor.local_machine import Finding, Machine, merge_finding
from tests.support.data.states import state_file
from tests.support.drive.cli import run_main
from tests.support.drive.served import GENESIS
from tests.support.servers.certificates import self_signed
from tests.support.servers.ports import free_port
from tests.support.servers.webhook_server import webhook_server

DOCTOR = Path(doctored.__file__).parent
GIB = 2**30
NO_MACHINE = Machine(frozenset({"torch"}), 8 * GIB, 4 * GIB, Path("/spool"), GIB, ())
DATA = JoinData("made up", (), 0, own=False, loopback=False, insecure=False)
ROOM = JoinRoom(1_000, 2 * GIB, GIB // 2, GIB, GIB, GIB)
GUIDE = JoinGuide("run", "1", "open", "torch", False, ("torch",), None, DATA, None, ROOM)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    assert len({found.name for found in findings}) == len(findings)
    return {found.name: found for found in findings}


async def way(url: str, trust: bool | str = True) -> dict[str, Finding]:
    return by_name(await look_at_way(Asked(url, trust), NO_MACHINE))


async def test_address_that_accepts_and_never_answers_is_given_up_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectivity, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = (await way(f"http://127.0.0.1:{silent.getsockname()[1]}"))["Reachability"]
    assert (found.verdict, found.kind) == ("problem", "coordinator-unreachable")
    assert found.found.endswith("does not answer: nothing arrived for 0.2 s")
    assert "firewall" in found.advice


@pytest.mark.parametrize(
    ("guide", "machine", "problems"),
    [
        ({}, {}, set()),
        ({"extras": ("torch", "hub")}, {}, {"Run's extras"}),
        ({}, {"gpu_bytes": GIB}, {"Run's model"}),
        ({}, {"gpu_bytes": None, "memory_bytes": GIB}, {"Run's model"}),
        ({"trainer": "numpy"}, {"gpu_bytes": GIB}, set()),
        ({}, {"spool_bytes": 1}, {"Run's disk"}),
        ({"room": None}, {"spool_bytes": 1, "gpu_bytes": 1}, set()),
    ],
    ids=["enough", "extra", "gpu", "memory", "numpy-needs-no-gpu", "disk", "no-model-yet"],
)
def test_machine_is_compared_with_what_the_run_needs(
    guide: dict[str, Any], machine: dict[str, Any], problems: set[str]
) -> None:
    found = needs_of(replace(GUIDE, **guide), replace(NO_MACHINE, **machine))
    assert {one.name for one in found if one.verdict == "problem"} == problems


async def test_way_to_a_coordinator_is_examined_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    endpoint = Endpoint(port=0, tls_cert=certificate, tls_key=key)
    options = ServeOptions(str(tmp_path / "run"), endpoint, __version__, genesis=GENESIS)
    async with serving(state_file(), options) as running:
        found = await way(running.url, str(certificate))
        assert [one.name for one in found.values() if one.verdict != "ok"] == []
        assert set(found) >= {"Reachability", "TLS", "Clock", "Run", "Run's model", "Run's data"}
        untrusted = await way(running.url)
        assert untrusted["Reachability"].verdict == "problem"
        assert untrusted["Reachability"].found.endswith("is not trusted (self-signed certificate)")
        assert untrusted["Reachability"].advice == "--tls-ca names whom to trust"
        assert untrusted["Reachability"].kind == "wrong-address"
        misnamed = (await way(running.url.replace("127.0.0.1", "localhost"), str(certificate)))["Reachability"]
        assert misnamed.advice == "give the address with a name that the certificate has"
        plain = (await way(running.url.replace("https", "http")))["Reachability"]
        assert (plain.found, plain.kind) == (f"{running.url.replace('https', 'http')} serves HTTPS", "wrong-address")


async def test_coordinator_that_does_not_answer_is_a_problem() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        found = await way(f"http://127.0.0.1:{unheard.getsockname()[1]}")
    assert [one.verdict for one in found.values()] == ["problem"]
    assert "firewall" in found["Reachability"].advice


async def test_name_that_no_host_has_is_a_wrong_address() -> None:
    found = (await way("http://no-such-host.invalid:8000"))["Reachability"]
    assert (found.found, found.kind) == ("there is no host 'no-such-host.invalid'", "wrong-address")


async def test_data_that_are_not_at_their_address_are_not_called_well(tmp_path: Path) -> None:
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS)
    with webhook_server() as other:
        place = {"location": {"SingleUrl": f"{other.url}/nowhere.bin"}, "token_size_in_bytes": "TwoBytes"}
        location = {"Http": place | {"shuffle": "DontShuffle"}}
        async with serving(state_file(model__LLM__data_location=location), options) as running:
            found = (await way(running.url))["Run's data"]
    assert (found.verdict, found.kind) == ("note", "source-unavailable")
    assert "answers HTTP " in found.found


async def test_other_servers_are_no_coordinators() -> None:
    with webhook_server() as other:
        found = await way(other.url)
    assert "not as a coordinator does" in found["Reachability"].found


async def test_run_that_not_everyone_may_see_is_said_to_be_so(tmp_path: Path) -> None:
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS)
    async with serving(state_file(access__dashboard="admin"), options) as running:
        found = await way(running.url)
    assert (found["Run"].verdict, found["Clock"].verdict) == ("note", "ok")
    assert "EPOCHAL_ADMIN_TOKEN" in found["Run"].advice


def test_merge_that_differs_from_everyone_elses_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert merge_finding().verdict == "ok"
    monkeypatch.setattr(doctored, "MERGED_DIGEST", "0" * 64)
    assert merge_finding().verdict == "problem"
    assert "do not train" in merge_finding().advice


@pytest.mark.nightly
def test_command_shows_each_finding_and_fails_for_a_problem() -> None:
    ran = run_main("doctor", "http://127.0.0.1:9", "--json")
    ran.expect(1)
    found = {one["name"]: one["verdict"] for one in json.loads(ran.out)}
    machine = {"Python", "Extras", "GPU", "Memory", "Disk", "Test merge"}
    assert found.keys() == machine | {"Reachability", "Run may use"}
    assert [name for name, verdict in found.items() if verdict == "problem"] == ["Reachability"]


def test_findings_name_only_kinds_that_are_explained() -> None:
    small = replace(NO_MACHINE, gpu_bytes=1, spool_bytes=1)
    found = list(needs_of(replace(GUIDE, packaged=True), small))
    assert {one.kind for one in found if one.kind} == {"unknown-trainer", "does-not-fit", "spool-full"}
    lacking = needs_of(replace(GUIDE, extras=("hub",)), NO_MACHINE)
    assert [one.kind for one in lacking if one.name == "Run's extras"] == ["extra-missing"]
    named = re.findall(r'"(?!nvidia)([a-z]+(?:-[a-z]+)+)"\)', "".join(path.read_text() for path in DOCTOR.glob("*.py")))
    assert len(set(named)) > 5
    assert [kind for kind in named if kind not in explanations()] == []


async def test_coordinator_that_is_away_is_explained() -> None:
    found = (await way(f"http://127.0.0.1:{free_port()}"))["Reachability"]
    assert (found.verdict, found.kind) == ("problem", "coordinator-unreachable")
    assert found.found.endswith("does not answer: connection refused")
