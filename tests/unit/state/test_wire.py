"""Strict JSON: one meaning for every reader, and numbers that are numbers."""

import time

import pytest

from epochal.state.errors import InvalidDocument
from epochal.state.messages.requests import CheckpointReport, FailureReport, ReadyReport, ResultMetrics
from epochal.state.wire import canonical_json, parse_document, strict_json

DIGEST = "a" * 64

AMBIGUOUS = {
    "doubled key": b'{"a":1,"a":1}',
    "doubled key inside": b'[{"b":{"a":1,"a":2}}]',
    "doubled by an escape": b'{"a":1,"\\u0061":2}',
    "not a number": b'{"a":NaN}',
    "infinity": b"[-Infinity]",
    "beyond a float": b"[1e999]",
    "underscore": b"[1_0]",
    "plus sign": b"[+1]",
    "leading zero": b"[01]",
    "half a pair": b'["\\ud800"]',
    "byte order mark": b"\xef\xbb\xbf{}",
    "another encoding": "{}".encode("utf-16"),
    "not unicode": b'"\xff"',
    "too deep": b"[" * 100_000,
    "endless number": b"9" * 5_000,
    "two values": b"{}{}",
    "comma at the end": b"[1,]",
    "nothing": b"",
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_json_that_readers_could_read_differently_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        strict_json(text)
    with pytest.raises(InvalidDocument):
        parse_document(ReadyReport, text)


def test_strict_json_returns_the_plain_values() -> None:
    values = {"a": [1, 2.5, -1e-3, True, None, "é\U0001f600"], "b": {"a": {}}}
    assert strict_json(canonical_json(values)) == values
    assert strict_json(b"[1.0]") == [1]


def ready(step: str) -> bytes:
    return f'{{"step":{step},"replica_digest":"{DIGEST}","data_fingerprint":"data"}}'.encode()


@pytest.mark.parametrize("step", ['"1"', '"1_0"', "true", "1.5", "1e-2", "null", "-1", "1e300"])
def test_whole_number_is_a_json_number_without_a_fraction(step: str) -> None:
    assert parse_document(ReadyReport, ready("1")).step == 1
    with pytest.raises(InvalidDocument, match="step"):
        parse_document(ReadyReport, ready(step))


@pytest.mark.parametrize("step", ["1", "1.0", "1e0", "10.00e-1"])
def test_whole_number_has_the_value_that_json_gives_it(step: str) -> None:
    assert parse_document(ReadyReport, ready(step)) == parse_document(ReadyReport, ready("1"))


def test_doubled_key_of_a_message_is_named() -> None:
    with pytest.raises(InvalidDocument, match="'step' occurs twice"):
        parse_document(ReadyReport, ready('1,"step":1'))


def test_whole_number_may_stand_for_a_number_of_seconds() -> None:
    assert parse_document(ResultMetrics, b'{"loss":1,"tokens":1,"train_s":0}') == ResultMetrics(1.0, 1, 0.0)


@pytest.mark.parametrize("interval", ['{"start":"0","end":1}', '{"start":0,"end":1.5}', '{"start":0,"end":1,"more":1}'])
def test_interval_in_a_message_is_read_as_strictly(interval: str) -> None:
    text = '{"step":1,"attempt":0,"kind":"corrupt","message":"","batch_id":%s}'
    assert parse_document(FailureReport, text % '{"start":0,"end":1}').batch_id is not None
    with pytest.raises(InvalidDocument, match="batch_id"):
        parse_document(FailureReport, text % interval)


def test_absent_value_is_still_null() -> None:
    text = f'{{"step":0,"replica_digest":"{DIGEST}","blob_sha256":null,"size_bytes":0}}'
    assert parse_document(CheckpointReport, text).blob_sha256 is None


def test_many_different_keys_are_compared_quickly() -> None:
    text = "{" + ",".join(f'"{number}":0' for number in range(100_000)) + ',"7":1}'
    started_s = time.process_time()
    with pytest.raises(ValueError, match="'7' occurs twice"):
        strict_json(text)
    assert time.process_time() - started_s < 5


@pytest.mark.parametrize(
    ("text", "kind"), [(b"9007199254740992.0", int), (b"9007199254740994.0", float), (b"0.5", float)]
)
def test_whole_numbers_that_a_float_holds_exactly_are_integers(text: bytes, kind: type) -> None:
    assert type(strict_json(text)) is kind


@pytest.mark.parametrize("loss", [b"NaN", b"Infinity", b"-Infinity"])
def test_message_with_a_number_that_is_not_finite_is_refused(loss: bytes) -> None:
    with pytest.raises(InvalidDocument):
        parse_document(ResultMetrics, b'{"loss":%s,"tokens":1,"train_s":1.0}' % loss)
    assert parse_document(ResultMetrics, b'{"loss":0.5,"tokens":1,"train_s":1.0}').loss == 0.5
