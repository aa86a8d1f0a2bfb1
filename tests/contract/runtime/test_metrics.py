"""All programs' metrics over sockets: Prometheus's parsers read them, and names and documentation are right."""

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from docs.metrics_tables import PROGRAMS, table
from epochal.commands.serve.trainer_service import serving_training
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server import DataServer
from epochal.data_providers.tcp.server_metrics import DataServerMetrics
from epochal.runtime.connections.shedding import Shed
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.http.metrics_server import serving_metrics
from epochal.runtime.metrics.metrics_registry import METHODS, new_registry
from epochal.state.errors import InvalidInput
from epochal.state.refusals import Refusal
from epochal.training_service.service import TrainingServiceOptions
from tests.support.data.open_gate import OpenGate
from tests.support.data.states import state_file

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TYPES = frozenset({"counter", "gauge", "histogram", "info"})
WRONG_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|kib|kilobytes|megabytes|percent)(_|$)")
DATA_ERRORS = frozenset({"unavailable", "corrupt", "out_of_range", "rejected", "trainer"})
SPEC = DatasetSpec(token_size_bytes=2, sequence_length=8)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a program showed at one moment, as the parsers of Prometheus's own client library read it.

    Attributes:
        families: the project's own metrics by name, without the suffix of their type.
    """

    content_type: str
    families: dict[str, Metric]

    def total(self, sample: str, **labels: str) -> float:
        """Return the sum over the samples of this name that have these labels."""
        return sum(
            found.value
            for family in self.families.values()
            for found in family.samples
            if found.name == sample and labels.items() <= found.labels.items()
        )


async def scrape(url: str, accept: str = "text/plain") -> Scrape:
    """Read a `/metrics` in the format that `accept` names."""
    async with httpx.AsyncClient() as http:
        answer = (await http.get(url, headers={"Accept": accept})).raise_for_status()
    parse = parse_openmetrics if accept == OPENMETRICS else parse_text
    families = {family.name: family for family in parse(answer.text) if family.name.startswith("epochal_")}
    return Scrape(answer.headers["content-type"], families)


@contextlib.asynccontextmanager
async def coordinator(folder: Path) -> AsyncIterator[str]:
    async with serving(state_file(), ServeOptions(str(folder / "run"), Endpoint(port=0))) as running:
        async with httpx.AsyncClient(base_url=running.url) as http:
            await http.get("/v1/runs/test-run")
            await http.get("/v1/runs/other")
            await http.post("/v1/runs/test-run/clients", content=b"{}")
        yield f"{running.url}/metrics"


@contextlib.asynccontextmanager
async def data_server(folder: Path) -> AsyncIterator[str]:
    registry, server = new_registry(), DataServer(DummyDataProvider(SPEC), SPEC, OpenGate())
    async with CoordinatorClient(httpx.AsyncClient(), "test-run") as api, serving_metrics(registry, 0) as url:
        DataServerMetrics(registry).watch(server, CoordinatorGate(api))
        yield url


@contextlib.asynccontextmanager
async def training_service(folder: Path) -> AsyncIterator[str]:
    async with serving_training(Endpoint(port=0), TrainingServiceOptions()) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            await http.get("/healthz")
        yield f"{url}/metrics"


SERVED: dict[str, Callable[[Path], AbstractAsyncContextManager[str]]] = {
    "coordinator": coordinator,
    "data-server": data_server,
    "training-service": training_service,
}


def full_name(family: Metric) -> str:
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def documented(program: str) -> dict[str, tuple[str, set[str]]]:
    """Return the type and labels of each metric in the program's table."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", table(PROGRAMS[program]), re.MULTILINE)
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}


def mistakes(family: Metric) -> list[str]:
    """Return how a metric deviates from https://prometheus.io/docs/practices/naming/."""
    name, found = family.name, []
    if not re.fullmatch(r"epochal_[a-z][a-z_]*[a-z]", name) or re.search(r"_(count|sum|bucket|gauge|histogram)$", name):
        found.append("name")
    if family.type not in TYPES:
        found.append(f"type {family.type}")
    if WRONG_UNITS.search(name) or ("duration" in name and not name.endswith("_seconds")):
        found.append("unit")
    if not re.fullmatch(r"\S.{8,}\.", family.documentation):
        found.append("help")
    for sample in family.samples:
        if family.type == "counter" and not sample.name.endswith("_total"):
            found.append(f"sample {sample.name}")
        found += [f"label {label}" for label in sample.labels if not re.fullmatch("[a-z]+(_[a-z]+)*", label)]
    return found


def test_every_program_is_scraped_here() -> None:
    assert SERVED.keys() == PROGRAMS.keys()


@pytest.mark.parametrize("program", SERVED)
async def test_prometheus_reads_both_formats_and_finds_no_mistake(program: str, tmp_path: Path) -> None:
    async with SERVED[program](tmp_path) as url:
        text, openmetrics = await scrape(url), await scrape(url, OPENMETRICS)
    assert text.content_type.startswith("text/plain; version=0.0.4")
    assert openmetrics.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert {name: mistakes(family) for name, family in openmetrics.families.items() if mistakes(family)} == {}
    plain = {family.name: family.documentation for family in text.families.values()}
    expected = {
        family.name + ("_info" if family.type == "info" else ""): family.documentation
        for family in openmetrics.families.values()
    }
    assert plain == expected


@pytest.mark.parametrize("program", SERVED)
async def test_documentation_lists_every_metric_with_its_labels(program: str, tmp_path: Path) -> None:
    async with SERVED[program](tmp_path) as url:
        found = await scrape(url, OPENMETRICS)
    listed = documented(program)
    shown = {full_name(family): family for family in found.families.values()}
    assert {name: family.type for name, family in shown.items()} == {name: kind for name, (kind, _) in listed.items()}
    for name, family in shown.items():
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == listed[name][1], name


@pytest.mark.parametrize("program", SERVED)
async def test_no_label_has_a_value_that_a_stranger_chooses(program: str, tmp_path: Path) -> None:
    async with SERVED[program](tmp_path) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            for request in ("GET /nowhere/1", "GET /nowhere/2", "BREW /metrics", "GET /docs?a"):
                method, place = request.split()
                await http.request(method, httpx.URL(url).join(place))
        found = await scrape(url)
    for family in found.families.values():
        for sample in family.samples:
            assert sample.labels.get("method", "GET") in METHODS | {"(none)"}
            assert sample.labels.get("reason", "internal") in {*Refusal, *DATA_ERRORS, *Shed}
            assert "nowhere" not in sample.labels.get("route", "")


async def test_refusals_bytes_and_status_classes_are_counted(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as url:
        found = await scrape(url)
    requests = "epochal_http_request_duration_seconds_count"
    assert found.total(requests, method="GET", route="/v1/runs/{run_id}", status="2xx") == 1
    assert found.total(requests, method="GET", route="/v1/runs/{run_id}", status="4xx") == 1
    assert found.total("epochal_http_refusals_total", reason="unknown-run") == 1
    assert found.total("epochal_http_refusals_total", reason="invalid-body") == 1
    assert found.total("epochal_http_request_body_bytes_total", route="/v1/runs/{run_id}/clients") == 2
    assert found.total("epochal_http_response_body_bytes_total", route="/v1/runs/{run_id}") > 100


async def test_metrics_alone_are_shown_under_names_of_this_machine() -> None:
    async with serving_metrics(new_registry(), 0) as url, httpx.AsyncClient() as http:
        assert (await http.get(url)).status_code == 200
        refused = await http.get(url, headers={"Host": "rebound.example"})
        assert refused.status_code == 421
        assert refused.json()["type"] == "urn:epochal:problem:host-not-allowed"


async def test_two_services_in_one_process_count_apart(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "one") as one, coordinator(tmp_path / "two") as two:
        first, second = [await scrape(url) for url in (one, two)]
        again: Scrape = await scrape(one)
    assert again.total("epochal_http_refusals_total") == second.total("epochal_http_refusals_total") == 2
    assert first.families.keys() == second.families.keys()


async def test_metrics_server_on_a_taken_port_is_refused_by_name() -> None:
    async with serving_metrics(new_registry(), 0) as url:
        port = httpx.URL(url).port
        assert port is not None
        assert url.startswith("http://127.0.0.1:"), "only this machine can reach it by default"
        with pytest.raises(InvalidInput, match=str(port)):
            async with serving_metrics(new_registry(), port):
                raise AssertionError("it is served")
