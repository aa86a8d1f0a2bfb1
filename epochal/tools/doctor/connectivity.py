"""The way from this machine to a coordinator: reachability, TLS, clock; and what its run needs."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from epochal import __version__
from epochal.cli.durations import shown_duration
from epochal.coordinator_client.wrong_address import mistake_in
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import connected_socket
from epochal.runtime.http.http_client import check_url, open_client, reason_of
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, NotAllowed
from epochal.state.shown.join_guide import TORCH, JoinGuide
from epochal.state.text.amounts import shown_bytes
from epochal.state.text.visible import visible
from epochal.state.wire import parse_document
from epochal.tools.doctor.local_machine import PACKAGE, Finding, Machine

CONNECT_S = 10.0
"""Maximum time to open a connection."""
ANSWER_S = 15.0
"""Maximum time of an answer."""
ROUND_TRIPS = 3
MAX_SKEW_S = 30.0
"""A certificate or a ticket may seem expired, or not yet valid, when the clock is further off."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The coordinator as it is asked.

    Attributes:
        url: without a slash at its end.
        trust: whether to verify its certificate, or a file with the authorities to trust.
        token: a member's or the admin token, where `[access] dashboard` is not public.
        reach: the addresses that the owner allowed; None for those that every coordinator may lead to.
    """

    url: str
    trust: bool | str
    token: str | None = None
    reach: Reach | None = None


async def look_at_way(asked: Asked, machine: Machine) -> list[Finding]:
    """Return what is found of the way to a coordinator, and of what its run asks of the machine.

    Raises:
        InvalidInput: the URL is wrong.
    """
    check_url(asked.url, "coordinator")
    asked = replace(asked, reach=(asked.reach or Reach()).of_coordinator(asked.url))
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    async with open_client(asked.url, "coordinator", asked.trust, asked.reach, timeout=timeout) as http:
        try:
            answer, trip_s = await _round_trip(http)
        except httpx.HTTPError as error:
            mistake = await mistake_in(asked.url, _unreachable(error))
            if mistake is not None:
                found, _, advice = visible(mistake).rpartition("; ")
                return [Finding("Reachability", "problem", found, advice, "wrong-address")]
            advice = "check the address and the port; is a firewall or another program there?"
            found = f"{asked.url} does not answer: {visible(_in_words(error) or reason_of(error, asked.url))}"
            return [Finding("Reachability", "problem", found, advice, "coordinator-unreachable")]
        runs = _runs(answer)
        if runs is None:
            found = f"{asked.url} answers, and not as a coordinator does (HTTP {answer.status_code})"
            advice = "give the address of the coordinator alone"
            return [Finding("Reachability", "problem", found, advice, "wrong-address")]
        shown = ", ".join(map(visible, runs)) or "no run"
        findings = [Finding("Reachability", "ok", f"{asked.url} serves {shown}; {trip_s * 1000:.0f} ms there and back")]
        findings += [_tls(asked), _clock(answer, trip_s)]
        for run_id in runs[:1]:
            findings += [found async for found in _needs(http, run_id, asked, machine)]
    return findings


def _in_words(error: httpx.HTTPError) -> str:
    """Return what httpx only names by a class; "" for what it says itself."""
    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout():
            return f"no connection within {CONNECT_S:g} s"
        case httpx.TimeoutException():
            return f"nothing arrived for {ANSWER_S:g} s"
        case httpx.ReadError() if not str(error):
            return "the connection was closed"
    return ""


def _unreachable(error: httpx.HTTPError) -> CoordinatorUnreachable:
    unreachable = CoordinatorUnreachable(str(error))
    unreachable.__cause__ = error
    return unreachable


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {visible(str(error))}" if str(error) else type(error).__name__


async def _round_trip(http: httpx.AsyncClient) -> tuple[httpx.Response, float]:
    """Return the coordinator's list of runs, and the seconds of the quickest of some requests on one connection."""
    answer, quickest_s = await http.get("/v1/runs"), ANSWER_S
    for _ in range(ROUND_TRIPS):
        began_s = time.monotonic()
        answer = await http.get("/v1/runs")
        quickest_s = min(quickest_s, time.monotonic() - began_s)
    return answer, quickest_s


def _runs(answer: httpx.Response) -> list[str] | None:
    try:
        found: Any = answer.json()
        runs = found["runs"]
    except (ValueError, KeyError, TypeError):
        return None
    return [run for run in runs if isinstance(run, str)] if isinstance(runs, list) else None


def _tls(asked: Asked) -> Finding:
    """Say whether the way is encrypted. That the certificate is trusted is known already, from the first request."""
    parts = urlsplit(asked.url)
    if parts.scheme == "https":
        return Finding("TLS", "ok", "the certificate is trusted")
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        return Finding("TLS", "ok", "none, and none is needed on this machine")
    found = "none: anybody on the way can read and change everything"
    return Finding("TLS", "note", found, "use https://", "would-be-unencrypted")


def _clock(answer: httpx.Response, trip_s: float) -> Finding:
    """Compare this machine's clock with the `Date` of an answer that has just come, which has whole seconds."""
    try:
        answered_s = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return Finding("Clock", "note", "not compared: the answer has no date")
    skew_s = time.time() - trip_s / 2 - answered_s
    found = f"{shown_duration(abs(skew_s))} {'ahead of' if skew_s > 0 else 'behind'} the coordinator's (± 1 s)"
    if abs(skew_s) > MAX_SKEW_S:
        return Finding("Clock", "problem", found, "set this machine's clock (NTP), or the coordinator's")
    return Finding("Clock", "ok", found)


async def _needs(http: httpx.AsyncClient, run_id: str, asked: Asked, machine: Machine) -> AsyncIterator[Finding]:
    """Yield what the run asks of the machine, beside what the machine has."""
    headers = {} if asked.token is None else {"Authorization": f"Bearer {asked.token}"}
    try:
        answer = await http.get(f"/v1/runs/{run_id}/join", headers=headers)
        if answer.status_code in (401, 403):
            yield Finding(
                "Run", "note", "who may see it is limited", "with the admin token (EPOCHAL_ADMIN_TOKEN) it is shown"
            )
            return
        guide = parse_document(JoinGuide, answer.raise_for_status().content)
    except (httpx.HTTPError, InvalidDocument) as error:
        yield Finding("Run", "note", f"what it needs is not known: {_reason(error)}")
        return
    access = {"open": "anyone may join", "keys": "known keys may join", "invitations": "an invitation is needed"}
    advice = (
        "" if guide.version == __version__ else f"the coordinator is {visible(guide.version)}: use the same version"
    )
    found = f"{visible(guide.run_id)}: trainer {visible(guide.trainer)}, {access[guide.access]}"
    yield Finding("Run", "note" if advice else "ok", found, advice)
    for finding in needs_of(guide, machine):
        yield finding
    async for finding in _data(http, guide, asked.reach):
        yield finding


def needs_of(guide: JoinGuide, machine: Machine) -> Iterator[Finding]:
    """Yield what a run's guide asks of a machine: extras, memory and disk."""
    missing = [extra for extra in guide.extras if extra not in machine.extras]
    if missing:
        names = ", ".join(missing)
        advice = f"pip install '{PACKAGE}[{','.join(missing)}]'"
        yield Finding("Run's extras", "problem", f"missing: {names}", advice, "extra-missing")
    elif guide.extras:
        yield Finding("Run's extras", "ok", ", ".join(guide.extras))
    if guide.packaged:
        advice = "it is of another package, which must be installed"
        yield Finding("Run's trainer", "note", visible(guide.trainer), advice, "unknown-trainer")
    room = guide.room
    if room is None:
        yield Finding("Run's model", "note", "not made yet: what it needs is not known")
        return
    on_gpu = guide.trainer == TORCH and machine.gpu_bytes is not None
    free = machine.gpu_bytes if on_gpu else machine.memory_bytes
    place = "on the GPU" if on_gpu else "of memory"
    found = f"{room.parameter_count:,} parameters: {shown_bytes(room.trainer_bytes)} {place} and room for activations"
    if room.base_bytes:
        found += f", and {shown_bytes(room.base_bytes)} for the base"
    if free is not None and free < room.trainer_bytes + room.base_bytes:
        advice = "use a larger machine, or " + ("--base-precision nf4" if room.base_bytes else "--mesh")
        yield Finding("Run's model", "problem", f"{found}; {shown_bytes(free)} are free", advice, "does-not-fit")
    else:
        yield Finding("Run's model", "ok", found)
    found = f"{shown_bytes(room.spool_bytes)} of temporary files"
    if machine.spool_bytes < room.spool_bytes:
        free = machine.spool_bytes
        advice = f"{shown_bytes(free)} are free in {machine.spool}: name a folder on another disk with --spool"
        yield Finding("Run's disk", "problem", found, advice, "spool-full")
    else:
        yield Finding("Run's disk", "ok", f"{found}; a newcomer downloads {shown_bytes(room.download_bytes)}")


async def _data(http: httpx.AsyncClient, guide: JoinGuide, reach: Reach | None) -> AsyncIterator[Finding]:
    data = guide.data
    places = ", ".join(map(visible, data.places)) or data.kind
    if data.own:
        yield Finding("Run's data", "note", f"{places}: each machine needs a copy", "name yours with client --data")
        return
    if data.kind == "server":
        for place in data.places:
            yield await _data_server(place.rpartition("://")[2], reach)
    elif data.kind == "http":
        for place in data.places:
            yield await _data_at(http, place)
    else:
        yield Finding("Run's data", "ok", places)


async def _data_server(place: str, reach: Reach | None) -> Finding:
    host, _, port = place.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            connected = await connected_socket(host.strip("[]"), int(port), reach=reach)
    except NotAllowed as error:
        return _not_allowed(error)
    except (OSError, TimeoutError, ValueError) as error:
        found = f"{visible(place)}: {_reason(error)}"
        return Finding("Run's data", "problem", found, "check the firewall, or use --data", "source-unavailable")
    connected.close()
    return Finding("Run's data", "ok", f"{visible(place)} can be reached")


def _not_allowed(error: NotAllowed) -> Finding:
    found, _, advice = visible(error.message).rpartition("; ")
    return Finding("Run's data", "problem", found, advice, "not-allowed")


async def _data_at(http: httpx.AsyncClient, place: str) -> Finding:
    try:
        answer = await http.head(place)
    except NotAllowed as error:
        return _not_allowed(error)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        found = f"{visible(place)}: {_reason(error)}"
        return Finding("Run's data", "problem", found, "check the network, or use --data", "source-unavailable")
    if answer.is_error:
        found = f"{visible(place)} answers HTTP {answer.status_code}"
        return Finding("Run's data", "note", found, "if a client cannot read it: use --data", "source-unavailable")
    return Finding("Run's data", "ok", f"{visible(place)} can be reached (HTTP {answer.status_code})")
