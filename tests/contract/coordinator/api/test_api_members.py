"""The members over HTTP: all of them as columns, made once for all who ask, and one with its rounds and refusals."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from epochal.coordinator.insight.member_views import MemberViews
from epochal.state.messages.member_rows import MEMBER_FIGURES, MemberColumns, MemberDetail, MembersPage
from epochal.state.messages.verification_views import VerificationView
from epochal.state.shown.verification_words import NOT_VERIFIED
from epochal.state.wire import parse_document
from tests.support.drive.played_rounds import played_run
from tests.support.drive.served import Served, WireClient, problem

ROUNDS = 3


@pytest.fixture
async def played() -> AsyncIterator[tuple[Served, list[WireClient]]]:
    """A run of which some rounds have ended."""
    async with played_run(ROUNDS) as run:
        yield run


async def page(coordinator: Served) -> MembersPage:
    answer = await coordinator.http.get(f"{coordinator.run_url}/members")
    assert answer.status_code == 200, answer.text
    found: MembersPage = parse_document(MembersPage, answer.content)
    return found


async def test_page_has_a_row_for_each_member(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    found = await page(coordinator)
    run = coordinator.service.run
    assert (found.run_id, found.lineage, found.rounds) == (run.state_file.run_id, run.identity.lineage, ROUNDS)
    rows = {row.client_id: row for row in found.members.rows()}
    assert list(rows) == [client.client_id for client in clients]
    assert found.gone.rows() == []
    assert sum(row.applied for row in rows.values()) == sum(
        figures.fate == "applied" for detail in coordinator.insight.projection.details for figures in detail.clients
    )
    assert sum(row.tokens for row in rows.values()) == run.tokens_applied
    assert sum(row.part for row in rows.values()) == pytest.approx(1)
    assert {row.factor for row in rows.values()} == {None}, "all results were as long as usual"
    for row in rows.values():
        assert row.in_roster
        assert row.ready
        assert (row.trainer, row.left, row.lost) == ("by hand", "", 0)
        assert row.joined_s is not None
        assert row.silent_s >= 0
    assert MemberColumns.of(found.members.rows()) == found.members
    assert set(found.members.__slots__) == set(MEMBER_FIGURES)


async def test_page_shows_who_left_and_why(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    assert (await clients[0].send("DELETE", "/clients/me")).status_code == 204
    found = await page(coordinator)
    assert [row.client_id for row in found.members.rows()] == [clients[1].client_id]
    (gone,) = found.gone.rows()
    assert (gone.client_id, gone.left, gone.ready, gone.in_roster) == (clients[0].client_id, "withdrew", False, False)


async def test_page_is_made_once_for_all_who_ask(
    monkeypatch: pytest.MonkeyPatch, played: tuple[Served, list[WireClient]]
) -> None:
    coordinator, _ = played
    made = 0
    make = MemberViews._made_page

    async def counted(views: MemberViews):  # type: ignore[no-untyped-def]
        nonlocal made
        made += 1
        return await make(views)

    monkeypatch.setattr(MemberViews, "_made_page", counted)
    url = f"{coordinator.run_url}/members"
    answers = await asyncio.gather(*(coordinator.http.get(url) for _ in range(20)))
    assert {answer.content for answer in answers} == {answers[0].content}
    assert made == 1
    etag = answers[0].headers["etag"]
    same = await coordinator.http.get(url, headers={"If-None-Match": etag})
    assert (same.status_code, same.content) == (304, b"")
    monkeypatch.setattr("epochal.coordinator.insight.member_views.MIN_PAGE_AGE_S", 0.0)
    monkeypatch.setattr("epochal.coordinator.insight.member_views.PAGE_AGE_PER_COST", 0.0)
    monkeypatch.setattr("epochal.coordinator.insight.member_views.MAX_PAGE_AGE_S", 0.0)
    again = await coordinator.http.get(url, headers={"If-None-Match": etag})
    assert (again.status_code, made) == (200, 2)


async def test_too_many_who_wait_for_a_page_are_refused(
    monkeypatch: pytest.MonkeyPatch, played: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.member_views.MAX_PAGE_WAITING", 0)
    coordinator, _ = played
    assert problem(await coordinator.http.get(f"{coordinator.run_url}/members")) == "overloaded"


async def test_member_is_shown_with_its_rounds(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    client = clients[0]
    answer = await coordinator.http.get(f"{coordinator.run_url}/members/{client.client_id}")
    found: MemberDetail = parse_document(MemberDetail, answer.content)
    assert [one.number for one in found.rounds] == list(range(ROUNDS))
    assert {one.figures.client_id for one in found.rounds} == {client.client_id}
    (row,) = [row for row in (await page(coordinator)).members.rows() if row.client_id == client.client_id]
    assert replace(found.figures, silent_s=row.silent_s) == row
    assert (found.refusals, found.quarantined) == ((), ())


@pytest.mark.parametrize("client_id", ["0" * 32, "x", "%1b%5b2J"])
async def test_member_that_was_never_seen_is_not_found(played: tuple[Served, list[WireClient]], client_id: str) -> None:
    coordinator, _ = played
    answer = await coordinator.http.get(f"{coordinator.run_url}/members/{client_id}")
    assert problem(answer) == "not-found"
    assert answer.json()["detail"].isprintable()


async def test_verification_is_shown_to_viewers(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    answer = await coordinator.http.get(f"{coordinator.run_url}/verification")
    found: VerificationView = parse_document(VerificationView, answer.content)
    assert (answer.status_code, found.percent, found.sentences) == (200, None, (NOT_VERIFIED,))
