"""What is shown of the verification of results: the run's own figures, the bound of false alarms, and no verifier."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from epochal.coordinator.insight.verification_view import LEAST_PASSED, verification_of
from epochal.coordinator.machine.replays.scores import WORSE_TO_MISS
from epochal.coordinator.machine.stimuli import CalibrationReported
from epochal.state.messages.replay_messages import CalibrationReport
from epochal.state.messages.verification_views import ShownConviction, ShownFlag
from epochal.state.shown.verification_words import NO_SCORER, NO_VERIFIER, NOT_VERIFIED, verification_words
from epochal.view.status_panel import MAX_SHOWN_SENTENCES, status_parts
from tests.support.drive.machine_driver import client, in_round
from tests.unit.coordinator.machine.replays.test_judging import CPU, convict, open_of, pass_all, play, report, verified
from tests.unit.coordinator.machine.replays.test_reveals import keeping
from tests.unit.coordinator.machine.replays.test_scores import BAD, LIAR, play_scored, scored
from tests.unit.epochal.view.test_status_panel import status_of


def test_run_that_is_not_verified_says_so() -> None:
    found = verification_of(in_round(1, 2, 3).run)
    assert (found.percent, found.sentences) == (None, (NOT_VERIFIED,))


def test_run_without_a_verifier_says_so_first() -> None:
    driver = verified(1, 2, 3, percent=100)
    play(driver)
    found = verification_of(driver.run)
    assert found.sentences[0] == NO_VERIFIER
    assert (found.verifiers, found.open, found.drawn) == (0, 3, 3)


def test_figures_are_the_runs_own() -> None:
    driver = verified(1, 2, 3, percent=100)
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 2, (0.01, 0.02))))
    play(driver)
    report(driver, open_of(driver)[0], 0.005)
    disputed = open_of(driver)[0]
    report(driver, disputed, 1.2)
    found = verification_of(driver.run)
    assert (found.drawn, found.passed, found.open, found.disputed, found.verifiers) == (3, 1, 2, 1, 1)
    assert found.false_alarms_below is None
    assert NO_VERIFIER not in found.sentences
    assert any("(1 of them disputed)" in sentence for sentence in found.sentences)
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 7, (0.01, 0.04))))
    (one,) = (one for one in verification_of(driver.run).classes if one.local_steps == 7)
    assert (one.calibrated, round(one.tolerance, 4), one.passed, one.median) == (0.04, 0.06, 0, None)


def test_conviction_and_the_bound_of_false_alarms_are_told() -> None:
    driver = verified(1, 2, 3, 4, percent=100)
    play(driver)
    liar = open_of(driver)[0].client_id
    convict(driver, liar)
    while driver.run.members.verification.counts.passed < LEAST_PASSED:
        pass_all(driver)
        play(driver)
    found = verification_of(driver.run)
    passed = driver.run.members.verification.counts.passed
    assert found.convicted == 1
    assert [one.client_id for one in found.convictions] == [liar]
    assert found.false_alarms_below == 3 / passed
    assert any(f"Convicted: client {liar}" in sentence for sentence in found.sentences)
    assert any(sentence.startswith("False alarms: fewer than") for sentence in found.sentences)


def test_newest_convictions_come_before_flags_and_classes() -> None:
    """So a terminal, which shows a few sentences, says by what figures."""
    flags = tuple(ShownFlag(client(number), "a reason") for number in range(MAX_SHOWN_SENTENCES))
    convictions = tuple(ShownConviction(client(number), f"figures {number}") for number in range(5))
    view = replace(verification_of(verified(1, 2).run), flags=flags, convictions=convictions)
    words = verification_words(view)
    assert [one[-9:] for one in words[:MAX_SHOWN_SENTENCES] if "figures" in one] == [
        "figures 4",
        "figures 3",
        "figures 2",
    ]
    assert [one[-9:] for one in words[-2:]] == ["figures 1", "figures 0"]


def test_run_of_scores_speaks_of_scores_and_of_no_false_alarms() -> None:
    driver = scored(1, 2, 3)
    assert verification_of(driver.run).sentences[0] == NO_SCORER
    while driver.run.members.verification.counts.passed < LEAST_PASSED:
        play_scored(driver, {})
    play_scored(driver, {LIAR: BAD}, WORSE_TO_MISS)
    found = verification_of(driver.run)
    assert (found.by, found.false_alarms_below) == ("scores", None)
    assert found.sentences[0].startswith("100 % of the results are scored by whether they make the loss")
    assert f"{found.passed} passed, 0 not scored in time" in found.sentences[0]
    assert found.sentences[1].startswith(f"Each result of client {LIAR} is scored: its last 3 results")
    assert not [one for one in found.sentences if "again" in one or "convicted" in one or "False alarms" in one]


def test_distances_of_inner_states_have_their_tolerance_too() -> None:
    driver = keeping(1, 2)
    driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 4, (0.04,), of_states=True)))
    (one,) = (one for one in verification_of(driver.run).classes if one.of_states)
    assert (one.result_class, one.local_steps, one.calibrated, round(one.tolerance, 4)) == (CPU, 4, 0.04, 0.06)
    assert any(
        f"inner states, {CPU} by {CPU}, 4 local steps: tol" in one for one in verification_of(driver.run).sentences
    )


def test_verifier_that_was_not_heard_for_long_counts_no_more() -> None:
    driver = verified(1, 2, 3, percent=100, within=2)
    play(driver)
    pass_all(driver)
    assert verification_of(driver.run).verifiers == 1
    play(driver, 4)
    assert verification_of(driver.run).verifiers == 0


def test_terminal_shows_the_same_sentences() -> None:
    driver = verified(1, 2, 3, percent=100)
    play(driver)
    console = Console(width=300, record=True, file=StringIO())
    shown = replace(status_of(1, 2.5), verification=verification_of(driver.run))
    for part in status_parts(shown, 3):
        console.print(part)
    assert client(1) in driver.run.members
    assert NO_VERIFIER in console.export_text()
