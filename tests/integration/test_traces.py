"""Traces of rounds, from a coordinator, a client and a data server in processes of their own, at a real endpoint."""

import signal
from pathlib import Path

from epochal.runtime.tracing.trace_ids import TracedRound
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import RealRun, prepared_run
from tests.support.heavy import need_module
from tests.support.servers.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver

DATA = 'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 16\n'
STEPS = 3


async def traced_run(run: RealRun, receiver: OtlpReceiver) -> list[ReceivedSpan]:
    """Return the spans of a run that one client trains on a data server's data, to its end."""
    traced = ("--otel-endpoint", receiver.url)
    (run.folder / "data").mkdir()
    (run.folder / "data" / "one.bin").write_bytes(bytes(65536))
    (run.folder / "data.toml").write_text(DATA, encoding="utf-8")
    await run.start_coordinator(*traced)
    server = ("data-server", str(run.folder / "data.toml"), "--coordinator", run.url, "--port", "0")
    data_server, address = await run.start_server("data-server", *server, *traced)
    client = await run.start_client("--data", f"tcp://{address}", *traced)
    assert await client.wait(BOUND_S) == 0, client.log_tail()
    data_server.process.send_signal(signal.SIGINT)
    assert await data_server.wait(BOUND_S) == 0, data_server.log_tail()
    await run.stop_coordinator()
    return receiver.spans()


async def test_all_parties_spans_of_a_round_are_one_trace(tmp_path: Path) -> None:
    need_module("opentelemetry.exporter.otlp")
    with otlp_receiver() as receiver:
        async with prepared_run(tmp_path, config__init_min_clients=1, config__total_steps=STEPS) as run:
            spans = await traced_run(run, receiver)
            token = run.admin_token
    assert receiver.paths == {"/v1/traces"}
    first = TracedRound("test-run", 1, 0)
    of_round = [span for span in spans if span.trace_id == f"{first.trace_id:032x}"]
    named = {(span.service.removeprefix("epochal-"), span.name) for span in of_round}
    assert named >= {
        ("coordinator", "round"),
        ("coordinator", "RoundTrain"),
        ("coordinator", "RoundWitness"),
        ("coordinator", "check result"),
        ("client", "client round"),
        ("client", "train"),
        ("client", "encode result"),
        ("client", "upload result"),
        ("client", "attest"),
        ("client", "merge"),
        ("client", "ask data server"),
        ("data-server", "serve samples"),
    }
    (root,) = (span for span in of_round if span.name == "round")
    assert (root.span_id, root.parent_id) == (f"{first.root_span_id:016x}", "")
    ids = {span.span_id for span in of_round}
    assert {span.parent_id for span in of_round if span is not root} <= ids
    assert all(span.start_ns <= span.end_ns for span in spans)
    assert {span.attributes["epochal.step"] for span in spans} >= set(range(1, STEPS + 1))
    assert token
    assert not any(token.encode() in body or b"Bearer" in body for body in receiver.bodies)
