"""Sentences on the verification of a run's results, the same in a terminal and on the page."""

from epochal.state.messages.verification_views import ClassDistances, VerificationView
from epochal.state.text.amounts import counted

FIRST_CONVICTIONS = 3
"""Number of the newest convictions that come before flags and classes."""
NOT_VERIFIED = "Results are not computed again by anybody: the state file has no [verify]."
NO_VERIFIER = (
    "No verifier: nobody computes results again at the moment. The shares of new keys stay small, and results "
    "that were drawn are dropped after some rounds."
)
NO_SCORER = NO_VERIFIER.replace("computes results again", "scores results")


def verification_words(view: VerificationView) -> tuple[str, ...]:
    """Return the sentences of a view, whose own are ignored."""
    if view.percent is None:
        return (NOT_VERIFIED,)
    if view.by == "scores":
        done, how, found = "scored", " by whether they make the loss on held-out data larger", "passed"
        words = [] if view.verifiers else [NO_SCORER]
    else:
        done, how, found = "computed again", "", f"passed, {view.convicted:,} convicted"
        words = [] if view.verifiers else [NO_VERIFIER]
    words.append(
        f"{view.percent} % of the results are {done}{how}: {view.drawn:,} drawn, {view.passed:,} {found}, "
        f"{view.dropped:,} not {done} in time, {view.open:,} open"
        f"{f' ({view.disputed:,} of them disputed)' if view.disputed else ''}; verifiers: {view.verifiers}"
        f"{f', and {view.refused} that lost the role' if view.refused else ''}."
    )
    if view.false_alarms_below is not None:
        words.append(
            f"False alarms: fewer than {view.false_alarms_below:.2%} of honest results, with 95 % certainty, if nobody "
            "who was convicted was honest."
        )
    convictions = [f"Convicted: client {one.client_id}: {one.found}" for one in reversed(view.convictions)]
    words += convictions[:FIRST_CONVICTIONS]
    words += [f"Each result of client {one.client_id} is {done}: {one.reason}." for one in view.flags]
    words += [class_words(one) for one in view.classes]
    words += convictions[FIRST_CONVICTIONS:]
    return tuple(words)


def class_words(found: ClassDistances) -> str:
    """Return the sentence of one pair of classes."""
    of = f"{found.result_class} by {found.replay_class}, {counted(found.local_steps, 'local step')}"
    calibrated = "not calibrated" if found.calibrated is None else f"calibrated up to {found.calibrated:.4f}"
    passed = "" if found.largest is None else f", passed up to {found.largest:.4f} (median {found.median:.4f})"
    return f"{'inner states, ' if found.of_states else ''}{of}: tolerance {found.tolerance:.4f}; {calibrated}{passed}."
