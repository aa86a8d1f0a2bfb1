"""Log lines for machines and for people."""

import itertools
import json
import logging
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.cli.output.client_log import log_event
from epochal.cli.output.logs import JsonFormatter, LogFormat, TextFormatter, start_logging
from epochal.cli.output.people_lines import ROUND_LINE_S, ForPeople, first_start_box
from epochal.run_manager.events import ReplicaDistrusted
from epochal.state.errors import InvalidInput


def test_log_lines_hold_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(ReplicaDistrusted(3, "no answer"))
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["level"], line["reason"]) == ("replica_distrusted", "info", "no answer")
    assert TextFormatter().format(record).endswith("info    replica_distrusted step=3 reason=no answer")


def test_log_line_of_an_exception_holds_its_end() -> None:
    logger = logging.getLogger("epochal.test")
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    try:
        raise InvalidInput("broken")
    except InvalidInput:
        logger.exception("it_failed")
    finally:
        logger.removeHandler(handler)
    assert json.loads(stream.getvalue())["exception"].endswith("broken")


def test_log_line_for_people_is_one_line_whatever_a_client_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(ReplicaDistrusted(3, "one\ntwo\x1b[2J"))
    assert TextFormatter().format(caplog.records[0]).endswith("replica_distrusted step=3 reason=one\\ntwo\\x1b[2J")


# At a terminal


def record(name: str, level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("epochal.test", level, __file__, 1, name, None, None)
    vars(made).update(fields)
    return made


TRAINED: dict[str, Any] = {
    "step": 6, "attempt": 0, "loss": 3.2959755525892738, "token_count": 7680, "train_s": 0.107, "uploaded_bytes": 15644,
    "result_sha256": "ab" * 32,
}  # fmt: skip


@given(st.lists(st.floats(0, 30), min_size=1, max_size=60))
def test_terminal_has_one_line_of_rounds_in_ten_seconds(pauses_s: list[float]) -> None:
    now_s, passed = [0.0], []
    shown = ForPeople(lambda: now_s[0])
    for pause_s in pauses_s:
        now_s[0] += pause_s
        if shown.filter(record("round_trained", **TRAINED)):
            passed.append(now_s[0])
        assert shown.filter(record("gets_no_work_for_a_while", logging.WARNING))
        assert shown.filter(record("outcome_decided", step=6, attempt=1, applied_results=0, reason="void"))
    assert passed
    assert all(later - earlier >= ROUND_LINE_S for earlier, later in itertools.pairwise(passed))


def test_round_at_a_terminal_is_a_sentence_without_digests() -> None:
    line = TextFormatter(for_people=True).format(record("round_trained", **TRAINED))
    assert line[9:] == "step 6: loss 3.296, 71,776 tokens/s, 0.01564 MB sent"
    line = TextFormatter(for_people=True).format(record("outcome_decided", step=7, attempt=2, applied_results=3))
    assert line[9:] == "step 7, after 2 failed tries: 3 results applied"
    void = record("outcome_decided", step=7, attempt=0, applied_results=0, reason="no result was verified")
    assert TextFormatter(for_people=True).format(void)[9:] == "step 7: nothing is applied: no result was verified"


def test_other_lines_at_a_terminal_have_four_digits_and_short_digests() -> None:
    line = TextFormatter(for_people=True).format(
        record("something", with_={"replica_digest": "4c10" * 16}, expires_s=1795552358.4865272, rest_s=1 / 3)
    )
    assert line.endswith("with_={'replica_digest': '4c104c104c10…'} expires_s=1795552358 rest_s=0.3333")
    page = f"http://host/#/member/{'9f' * 16}"
    line = TextFormatter(for_people=True).format(record("something", page=page))
    assert line.endswith(page), "an address that is cut leads nowhere"


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        (
            "operator_acted",
            {"action": "genesis", "with": {"step": 0, "replica_digest": "4c10" * 16}},
            "the run starts from the model of step 0",
        ),
        ("operator_acted", {"action": "pause", "with": {}}, "the operator: pause"),
        (
            "operator_acted",
            {"action": "eject", "with": {"client_id": "ab" * 16}},
            "the operator: eject (client_id abababababab…)",
        ),
        ("phase_changed", {"before": "Warmup", "after": "RoundTrain", "reason": "why"}, "Warmup → RoundTrain: why"),
        ("dataset opened", {"sequences": 2000, "files": 1, "fingerprint": "f" * 64}, "data: 2,000 samples in 1 file"),
        (
            "coordinator_pinned",
            {"coordinator_key": "ab" * 32, "file": "me.known"},
            "the coordinator's key is kept in me.known",
        ),
        ("trainer_opened", {"opening_s": 1.23456}, "the trainer is open, after 1.235 s"),
        ("replica_held", {"step": 4, "replica_digest": "ab" * 32, "origin": "checkpoint"}, "holds the model of step 4"),
        ("became_ready", {"step": 4}, "ready with the model of step 4"),
        ("waits", {"for": "members: 1 of 2"}, "waits for members: 1 of 2"),
        ("takes_no_part_for_now", {"reason": "it is not idle"}, "takes no part for now: it is not idle"),
        ("takes_part_again", {}, "takes part again"),
    ],
)
def test_what_happened_is_a_sentence_at_a_terminal(name: str, fields: dict[str, Any], sentence: str) -> None:
    made = record(name, **fields)
    assert ForPeople().filter(made)
    assert TextFormatter(for_people=True).format(made)[9:] == sentence


def test_servers_own_lines_are_left_out_at_a_terminal_but_for_warnings() -> None:
    made = record("Started server process [8093]")
    made.name = "uvicorn.error"
    assert not ForPeople().filter(made)
    made.levelno = logging.WARNING
    assert ForPeople().filter(made)


@pytest.mark.parametrize(
    ("name", "fields", "is_shown"),
    [
        ("first_checkpoint_made", {"step": 0}, False),
        ("attested", {"step": 1}, False),
        ("blobs_swept", {"count": 1}, False),
        ("recorded_blobs_swept", {"count": 12, "conflicts": 0}, False),
        ("replica_held", {"origin": "outcome"}, False),
        ("replica_held", {"origin": "checkpoint"}, True),
        ("phase_changed", {"before": "RoundTrain", "after": "RoundWitness"}, False),
        ("phase_changed", {"before": "RoundWitness", "after": "Cooldown"}, True),
        ("joined", {}, True),
    ],
)
def test_what_comes_with_every_round_is_left_out_at_a_terminal(
    name: str, fields: dict[str, Any], is_shown: bool
) -> None:
    assert ForPeople().filter(record(name, **fields)) == is_shown


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "log_format", "verbose", "is_whole"),
    [
        (Terminal(), LogFormat.TEXT, False, False),
        (Terminal(), LogFormat.TEXT, True, True),
        (Terminal(), LogFormat.JSON, False, True),
        (StringIO(), LogFormat.TEXT, False, True),
    ],
)
def test_files_json_and_verbose_have_every_line_with_its_digests(
    stream: StringIO, log_format: LogFormat, verbose: bool, is_whole: bool
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        start_logging(log_format, verbose=verbose, stream=stream)
        for _ in range(2):
            logging.getLogger("epochal.test").info("round_trained", extra=TRAINED)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert stream.getvalue().count("ab" * 32) == (2 if is_whole else 0)
    assert stream.getvalue().count("\n") == (2 if is_whole else 1)


def test_box_of_a_first_start_has_what_its_operator_needs() -> None:
    box = first_start_box("shared", "http://127.0.0.1:8000", "token")
    for text in (
        "epochal client http://127.0.0.1:8000 ",
        "http://127.0.0.1:8000/ ",
        "export EPOCHAL_ADMIN_TOKEN=token",
        "epochal status http://127.0.0.1:8000",
    ):
        assert text in box
    assert len({len(line) for line in box.splitlines()}) == 1
    assert "epochal invite URL (prints their command)" in first_start_box("shared", "URL", "token", invites=True)
    box = first_start_box("shared", "URL", "token", tls_ca="a cert.pem")
    assert box.count("URL --tls-ca 'a cert.pem'") == 2, "for members and for the operator"
