"""The comparison with other systems that train: what it reads from logs and counters, and how it names an error."""

import io
import json

import pytest

from benchmarks.training.peer_training import PEERS, figures_of, spread
from benchmarks.training_peers.event_lines import EpochalEvents, Event, EventReader
from benchmarks.training_peers.loopback import sent_bytes
from benchmarks.training_peers.systems import EPOCHAL, SETTINGS, epochal_state
from benchmarks.training_peers.trial import Trial, kill_phases, rate_of, round_of
from benchmarks.training_peers.workload import LOCAL_STEPS, TOKENS_PER_STEP
from epochal.state.config.state_file import parse_state

COUNTERS = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo:    1200      10    0    0    0     0          0         0     3400      10    0    0    0     0       0
  eth0: 99 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0
"""


def applied(time_s: float, tokens: int) -> Event:
    return Event(time_s, "applied", own=True, tokens=tokens)


def log_of(*lines: dict[str, object]) -> bytes:
    return b"".join(json.dumps({"time_s": 1.0, **line}).encode() + b"\n" for line in lines)


def test_sent_bytes_are_those_of_the_named_interface() -> None:
    assert (sent_bytes(COUNTERS), sent_bytes(COUNTERS, "eth0")) == (3400, 77)


def test_sent_bytes_of_an_unknown_interface_are_refused() -> None:
    with pytest.raises(ValueError, match="wlan0"):
        sent_bytes(COUNTERS, "wlan0")


def test_event_reader_leaves_an_unfinished_line_for_the_next_time() -> None:
    whole = log_of({"event": "imported"}, {"event": "applied", "step": 2, "own": True})
    reader = EventReader()
    first = reader.read(io.BytesIO(b"not json\n" + whole[:-3]))
    assert [event.kind for event in first] == ["imported"]
    assert reader.read(io.BytesIO(b"not json\n" + whole)) == [Event(1.0, "applied", 2, own=True)]


def test_epochal_events_count_only_results_that_were_applied() -> None:
    trained = {"event": "round_trained", "batch_count": 3}
    log = log_of(
        trained,
        {"event": "result_settled", "is_applied": True},
        {"event": "replica_held", "origin": "outcome", "step": 1},
        trained,
        {"event": "result_settled", "is_applied": False},
        {"event": "replica_held", "origin": "outcome", "step": 2},
        {"event": "replica_held", "origin": "checkpoint", "step": 2},
    )
    events = EventReader(EpochalEvents()).read(io.BytesIO(log))
    assert [(event.step, event.own, event.tokens) for event in events] == [
        (1, True, 3 * TOKENS_PER_STEP),
        (2, False, 3 * TOKENS_PER_STEP),
    ]


def test_rate_adds_the_workers_and_round_is_the_median_interval() -> None:
    slow = [applied(0.0, 0), applied(4.0, 40)]
    fast = [applied(0.0, 100), applied(1.0, 120), applied(2.0, 140), applied(8.0, 260)]
    assert rate_of([slow, fast]) == 10 + 20
    assert round_of(fast) == 1.0


def test_kill_phases_are_spread_over_a_round() -> None:
    assert kill_phases(2) == [0.25, 0.75]


def test_spread_shows_median_smallest_and_largest() -> None:
    assert spread([3.0, 1.0, 8.0]) == "3.0 (1.0–8.0, 3 times)"
    assert spread([]) == ""


def test_figures_of_a_peer_that_did_not_run_name_its_error() -> None:
    trials = {(peer, settings): Trial(error="trace\nno | wheel") for peer in PEERS for settings in SETTINGS}
    trials |= {(EPOCHAL, settings): Trial(5.0, 2.0, 1.0, [1.0], [9.0], [8.0]) for settings in SETTINGS}
    figures = figures_of(trials)
    assert {figure.baseline for figure in figures} == {None}
    assert all(figure.baseline_name.endswith("no \\| wheel") for figure in figures)


@pytest.mark.parametrize("settings", SETTINGS)
def test_epochal_state_is_one_that_a_coordinator_reads(settings: str) -> None:
    assert parse_state(epochal_state("tokens.bin", settings), "state.toml").merge.local_steps == LOCAL_STEPS
