"""Spans to an OpenTelemetry endpoint: never in the way, whatever the endpoint does."""

import contextlib
import gc
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from epochal.runtime.tracing import otlp
from epochal.runtime.tracing.otlp import endpoint_of, exported_spans
from epochal.runtime.tracing.request_spans import requests_traced_by, traced_request
from epochal.runtime.tracing.spans import RoundSpan
from epochal.runtime.tracing.trace_ids import TracedRound, traceparent
from epochal.state.errors import InvalidInput
from tests.support.heavy import need_module
from tests.support.servers.otlp_receiver import otlp_receiver

ROUND = TracedRound("run", 7, 1)
PINNED = "00-8f58c831815b339af5a572c75d93ef39-7d397c118f0f7fc4-01"
VARIABLES = (otlp.ENDPOINT_VARIABLE, otlp.TRACES_ENDPOINT_VARIABLE, otlp.DISABLED_VARIABLE)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("opentelemetry.exporter.otlp")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_ids_of_a_round_are_pinned() -> None:
    assert traceparent(ROUND.trace_id, ROUND.root_span_id) == PINNED
    assert len({TracedRound("run", 7, 0).trace_id, TracedRound("run", 8, 1).trace_id, ROUND.trace_id}) == 3


def test_a_span_arrives_with_its_ids_times_and_failure() -> None:
    long: dict[str, str | int | float | bool] = {"epochal.bytes": 3, "epochal.text": "y" * 1000}
    span = RoundSpan("train", ROUND, 10.0, 12.5, long, 5, 6, "x" * 1000)
    with otlp_receiver() as receiver:
        with exported_spans(f"{receiver.url}/v1/traces", "epochal-test") as sink:
            sink.take(span)
        (found,) = receiver.spans()
    assert (found.service, found.name, found.is_error) == ("epochal-test", "train", True)
    assert found.trace_id == f"{ROUND.trace_id:032x}"
    assert (found.span_id, found.parent_id) == (f"{5:016x}", f"{6:016x}")
    assert (found.start_ns, found.end_ns) == (10_000_000_000, 12_500_000_000)
    expected = {"epochal.run_id": "run", "epochal.step": 7, "epochal.attempt": 1, "epochal.bytes": 3}
    assert found.attributes == expected | {"epochal.text": "y" * otlp.MAX_ATTRIBUTE_CHARS}


def test_an_endpoint_that_hangs_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began_s = time.monotonic()
        with exported_spans(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces", "epochal-test") as sink:
            for _ in range(otlp.QUEUE_SPANS + 1000):
                sink.take(RoundSpan("train", ROUND, 10.0, 12.5))
            taken_s = time.monotonic() - began_s
        closed_s = time.monotonic() - began_s - taken_s
    assert taken_s < otlp.SEND_TIMEOUT_S
    assert closed_s < otlp.SEND_TIMEOUT_S


def test_spans_that_nobody_takes_use_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 0.2)
    monkeypatch.setattr(otlp, "QUEUE_SPANS", 256)
    monkeypatch.setattr(otlp, "BATCH_SPANS", 64)

    def take(count: int) -> int:
        for number in range(count):
            sink.take(RoundSpan("train", ROUND, 10.0, 12.5, {"epochal.text": f"{number} {'x' * 200}"}))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with socket.create_server(("127.0.0.1", 0)) as listener:  # it accepts, and never answers
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
        with exported_spans(url, "epochal-test") as sink:
            tracemalloc.start()
            try:
                full_bytes = take(2 * otlp.QUEUE_SPANS)
                later_bytes = take(12 * otlp.QUEUE_SPANS)
            finally:
                tracemalloc.stop()
    assert later_bytes < 1.3 * full_bytes + 100_000, "the oldest are dropped"


def test_an_absent_endpoint_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "SEND_TIMEOUT_S", 0.3)
    caplog.set_level(logging.WARNING)
    earlier = {thread.ident for thread in threading.enumerate()}  # of other tests, which may give up just now
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with exported_spans(f"http://user:secret@127.0.0.1:{port}/v1/traces", "epochal-test") as sink:
        for _ in range(3 * otlp.BATCH_SPANS):
            sink.take(RoundSpan("train", ROUND, 10.0, 12.5))
    lines = [record for record in caplog.records if record.thread not in earlier]
    assert [line.getMessage() for line in lines] == ["traces_not_sent"]
    assert "secret" not in caplog.text


def test_endpoint_is_the_option_or_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint_of(None) is None
    assert endpoint_of("http://host:4318") == "http://host:4318/v1/traces"
    assert endpoint_of("http://host:4318/v1/traces") == "http://host:4318/v1/traces"
    monkeypatch.setenv(otlp.ENDPOINT_VARIABLE, "http://base:4318/")
    assert endpoint_of(None) == "http://base:4318/v1/traces"
    monkeypatch.setenv(otlp.TRACES_ENDPOINT_VARIABLE, "http://own:1/x")
    assert endpoint_of(None) == "http://own:1/x"
    monkeypatch.setenv(otlp.DISABLED_VARIABLE, "true")
    assert endpoint_of(None) is None


def test_variable_that_is_no_url_is_said_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(otlp.ENDPOINT_VARIABLE, "grpc-host:4317")
    assert endpoint_of(None) is None
    assert "traces_not_sent" in caplog.text


def test_option_without_the_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_is_installed", lambda: False)
    with pytest.raises(InvalidInput, match=r"pip install 'epochal\[otel\]'"):
        endpoint_of("http://host:4318")
    monkeypatch.setenv(otlp.ENDPOINT_VARIABLE, "http://base:4318/")
    assert endpoint_of(None) is None


def test_option_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--otel-endpoint"):
        endpoint_of("host:4318")


def test_requests_have_no_parent_without_a_tracer() -> None:
    with traced_request("ask", "host:1") as parent:
        assert parent is None


def test_requests_are_given_to_the_tracer() -> None:
    class Tracer:
        @contextlib.contextmanager
        def request(self, name: str, server: str) -> Iterator[str | None]:
            yield f"{name} {server}"

    with requests_traced_by(Tracer()), traced_request("ask", "host:1") as parent:
        assert parent == "ask host:1"
