"""The run's history over HTTP: pages, one round, the present; who may see it; what is refused."""

from collections.abc import AsyncIterator

import pytest

from epochal.state.messages.history_rows import HistoryPage, Moment, RoundDetail, slowest_first
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.wire import parse_document
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round, played_run
from tests.support.drive.served import ADMIN, Served, WireClient, problem, served, training

ROUNDS = 5

PLACES = (
    "/history",
    "/history/rounds/0",
    "/history/present",
    "/history/explanation",
    "/members",
    "/join",
    "/actions",
    "/audits",
    "/events",
)


@pytest.fixture
async def played() -> AsyncIterator[tuple[Served, list[WireClient]]]:
    """A run of which some rounds have ended."""
    async with played_run(ROUNDS) as run:
        yield run


async def page(coordinator: Served, query: str = "") -> HistoryPage:
    answer = await coordinator.http.get(f"{coordinator.run_url}/history{query}")
    assert answer.status_code == 200, answer.text
    found: HistoryPage = parse_document(HistoryPage, answer.content)
    return found


async def test_history_has_a_row_for_each_round_that_has_ended(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    found = await page(coordinator)
    run = coordinator.service.run
    assert (found.next, found.detailed_from, found.lineage) == (ROUNDS, 0, run.identity.lineage)
    assert found.rounds.number == tuple(range(ROUNDS))
    assert found.rounds.step == tuple(range(1, ROUNDS + 1))
    assert found.rounds.loss == (1.0,) * ROUNDS
    assert found.rounds.tokens_total[-1] == run.tokens_applied
    assert sum(found.rounds.tokens) == run.tokens_applied
    assert list(found.rounds.version) == sorted(found.rounds.version)
    assert found.rounds.rows() == coordinator.insight.projection.rows


async def test_history_is_cut_and_thinned_as_asked(played: tuple[Served, list[WireClient]]) -> None:
    for query, numbers in (
        ("?from=2", (2, 3, 4)),
        ("?to=1", (0, 1)),
        ("?from=1&to=3", (1, 2, 3)),
        ("?from=4&to=9", (4,)),
        ("?from=7", ()),
        ("?points=2", (0, 3)),
        ("?from=1&points=1", (1,)),
    ):
        found = await page(played[0], query)
        assert (found.rounds.number, found.next) == (numbers, ROUNDS), query


async def test_history_that_cannot_be_cut_so_is_refused(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    for query in ("from=-1", "to=x", "points=0", "points=4097", "from=3&to=2", "from=1&from=2"):
        answer = await coordinator.http.get(f"{coordinator.run_url}/history?{query}")
        assert problem(answer) == "invalid-parameter", query


async def test_page_is_sent_once_to_who_keeps_it(
    monkeypatch: pytest.MonkeyPatch, played: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.history_views.MIN_COMPRESSED_BYTES", 1)
    coordinator, clients = played
    url = f"{coordinator.run_url}/history"
    first = await coordinator.http.get(url, headers={"Accept-Encoding": "gzip"})
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["vary"] == "Accept-Encoding, Authorization"
    plain = await coordinator.http.get(url, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == first.content
    same = await coordinator.http.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    await play_round(coordinator, clients)
    other = await coordinator.http.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (other.status_code, other.json()["next"]) == (200, ROUNDS + 1)


async def test_round_is_shown_with_each_of_its_clients(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    answer = await coordinator.http.get(f"{coordinator.run_url}/history/rounds/3")
    detail: RoundDetail = parse_document(RoundDetail, answer.content)
    assert detail.figures == (await page(coordinator, "?from=3&to=3")).rounds.rows()[0]
    assert {found.client_id for found in detail.clients} == {client.client_id for client in clients}
    for found in detail.clients:
        assert found.fate == ("applied" if found.batches else "idle")
        assert (found.delivered_s or 0) >= (found.committed_s or 0) > 0
    missing = await coordinator.http.get(f"{coordinator.run_url}/history/rounds/{ROUNDS}")
    assert problem(missing) == "not-found"
    assert f"held: 0 to {ROUNDS - 1}" in missing.json()["detail"]


async def test_explanation_is_told_with_the_status(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    answer = await coordinator.http.get(f"{coordinator.run_url}/history/explanation")
    found: SpeedExplanation = parse_document(SpeedExplanation, answer.content)
    assert (found.rounds, found.next) == (ROUNDS, ROUNDS)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.wall_s, abs=0.01)
    again = await coordinator.http.get(answer.url, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
    assert status["explanation"] == found.sentence
    assert status["waiting"].startswith("waits for ")


async def test_history_that_is_being_read_is_not_shown_yet(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    coordinator.insight.history.read_again()
    answer = await coordinator.http.get(f"{coordinator.run_url}/history")
    assert problem(answer) == "overloaded"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("rule", "nobody", "wrong", "member"),
    [("members", "unauthorized", "unauthorized", None), ("admin", "unauthorized", "forbidden", "forbidden")],
)
async def test_dashboard_is_shown_to_those_whom_the_rule_allows(
    rule: str, nobody: str, wrong: str, member: str | None, place: str
) -> None:
    state = state_file(config__waiting_for_members_extra_time=0.001, access__dashboard=rule)
    async with served(state) as coordinator:
        client = WireClient(coordinator, 1)
        await client.join()
        url = f"{coordinator.run_url}{place}"
        assert problem(await coordinator.http.get(url)) == nobody
        bad = await coordinator.http.get(url, headers={"Authorization": "Bearer guess"})
        assert problem(bad) == wrong
        if place == "/events":
            return  # it has no end; `test_api_events.py` reads it
        for token, refused in ((client.token, member), (ADMIN, None)):
            answer = await coordinator.http.get(url, headers={"Authorization": f"Bearer {token}"})
            if refused is not None:
                assert problem(answer) == refused
            else:
                assert answer.status_code in (200, 404, 503)


async def test_public_dashboard_of_another_run_is_not_here(coordinator: Served) -> None:
    for place in PLACES:
        assert problem(await coordinator.http.get(f"/v1/runs/other{place}")) == "unknown-run"


async def test_present_is_the_same_for_all_who_ask_at_about_the_same_time(
    played: tuple[Served, list[WireClient]], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, clients = played
    url = f"{coordinator.run_url}/history/present?slowest=1"
    monkeypatch.setattr("epochal.coordinator.insight.history_views.SAME_PRESENT_S", 3600.0)
    first = await coordinator.http.get(url)
    shown: Moment = parse_document(Moment, first.content)
    assert shown.document.version == coordinator.service.published.version
    assert len(shown.under_way) == 1
    await play_round(coordinator, clients)
    assert (await coordinator.http.get(url)).content == first.content, "though the run has gone on"
    assert (await coordinator.http.get(url, headers={"If-None-Match": first.headers["etag"]})).status_code == 304


async def test_slowest_clients_come_first_and_as_few_as_asked(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    url = f"{coordinator.run_url}/history/rounds/2"
    whole: RoundDetail = parse_document(RoundDetail, (await coordinator.http.get(url)).content)
    for count in (0, 1, 7):
        few: RoundDetail = parse_document(RoundDetail, (await coordinator.http.get(f"{url}?slowest={count}")).content)
        assert few.clients == slowest_first(whole.clients, count)
        assert few.figures == whole.figures
    for query, count in (("?slowest=1", 1), ("", 2)):
        answer = await coordinator.http.get(f"{coordinator.run_url}/history/present{query}")
        moment: Moment = parse_document(Moment, answer.content)
        assert moment.last_round is not None
        assert (len(moment.last_round.clients), len(moment.under_way)) == (count, count)
    assert problem(await coordinator.http.get(f"{url}?slowest=-1")) == "invalid-parameter"


async def test_operator_reads_the_run_document_and_results(coordinator: Served) -> None:
    await training(coordinator, 2)
    step = coordinator.service.run.progress.step
    for token, status in ((ADMIN, 200), ("guess", 401)):
        for place in ("", f"/rounds/{step}/results"):
            url = f"{coordinator.run_url}{place}"
            answer = await coordinator.http.get(url, headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == status, place


async def test_member_that_looks_at_the_run_is_not_heard_by_it() -> None:
    state = state_file(config__waiting_for_members_extra_time=0.001, access__dashboard="members")
    async with served(state) as coordinator:
        client = WireClient(coordinator, 1)
        await client.join()
        liveness, client_id = coordinator.service.liveness, client.client_id
        heard_s = liveness.silent_s(client_id, 0.0)
        headers = {"Authorization": f"Bearer {client.token}"}
        await coordinator.insight.history.is_read.wait()
        assert (await coordinator.http.get(f"{coordinator.run_url}/history", headers=headers)).status_code == 200
        assert liveness.silent_s(client_id, 0.0) == heard_s
