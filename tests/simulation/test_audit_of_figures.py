"""The audit computes the lengths of results, how like they are, and what follows from that, again."""

from dataclasses import replace

from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.machine.records import RecordBody
from epochal.coordinator.machine.stimuli import STIMULI, ResultReceived, Stamped
from epochal.coordinator.proof.audit import audit
from epochal.coordinator.proof.recompute import recompute
from epochal.state.documents import Outcome
from epochal.state.weights import norm_hex, number_of
from epochal.state.wire import canonical_json, parse_document
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

NUMPY = ClientSpec(trainer="numpy")
STATE = state_file(
    config__init_min_clients=3,
    config__checkpoint_every=2,
    model__LLM__ngram={"context": 2, "embedding": 2, "hidden": 2},
)
VERIFIED = state_file(
    config__init_min_clients=3,
    config__checkpoint_every=64,
    verify={},
    merge__inner_state="reset",
    model__LLM__ngram={"context": 2, "embedding": 2, "hidden": 2},
)


def longer(outcome: Outcome) -> Outcome:
    """The outcome with a first result that is longer by a millionth, and the same factor."""
    first, *rest = outcome.entries
    return replace(outcome, entries=(replace(first, norm=norm_hex(number_of(first.norm) * (1 + 1e-6))), *rest))


def with_longer_results(record: JournalRecord) -> JournalRecord:
    """The record with results that are ten times as long."""

    def changed(one: Stamped) -> Stamped:
        stimulus = one.stimulus
        if not isinstance(stimulus, ResultReceived) or stimulus.verdict is None or stimulus.verdict.norm is None:
            return one
        verdict = replace(stimulus.verdict, norm=10 * stimulus.verdict.norm)
        return replace(one, stimulus=replace(stimulus, verdict=verdict))

    body = parse_document(RecordBody, record.body)
    stimuli = tuple(changed(one) for one in STIMULI.validate_json(body.stimuli))
    return replace(record, body=canonical_json(replace(body, stimuli=STIMULI.dump_json(stimuli).decode())))


@in_virtual_time
async def test_audit_finds_a_result_of_another_length_than_was_kept() -> None:
    async with simulated_run(STATE, seed=1) as run:
        await run.play(NUMPY, NUMPY, NUMPY)
        kept, blobs = run.coordinator.run, run.coordinator.store.blobs
        assert (await recompute(kept, blobs, {}, 4)).problem is None
        wrong = kept.with_parts(
            replace(kept.models, outcomes={**kept.models.outcomes, 4: longer(kept.models.outcomes[4])})
        )
        problem = (await recompute(wrong, blobs, {}, 4)).problem
        assert problem is not None
        assert problem.startswith(f"the result of {kept.models.outcomes[4].entries[0].client_id} in step 4 has length ")


@in_virtual_time
async def test_audit_finds_factors_that_do_not_follow_from_the_lengths() -> None:
    async with simulated_run(STATE, seed=1) as run:
        await run.play(NUMPY, NUMPY, NUMPY)
        store = run.coordinator.reader
        assert (await audit(store, with_parameters=False)).problems == ()
        segments = run.coordinator.journal.segments
        segments[1] = replace(segments[1], records=tuple(map(with_longer_results, segments[1].records)))
        run.coordinator.journal.segments = segments
        report = await audit(store, with_parameters=False)
        assert not report.replay_identical
        assert "replays to another document than was published" in report.problems[0]


@in_virtual_time
async def test_audit_finds_results_that_are_otherwise_alike_than_was_kept() -> None:
    """Real results of a run that is verified; the coordinator compares them as it adds them up."""
    async with simulated_run(VERIFIED, seed=1) as run:
        await run.play(NUMPY, NUMPY, NUMPY)
        kept, blobs = run.coordinator.run, run.coordinator.store.blobs
        verification = kept.members.verification
        assert set(verification.compared) == set(kept.models.outcomes)
        found = verification.compared[4].figures
        assert set(found) == {entry.client_id for entry in kept.models.outcomes[4].entries}
        assert all(-1 <= cosine <= 1 for like in found.values() for cosine in like if cosine is not None)
        assert all(like.with_own is not None for like in found.values()), "with their results of the steps before"
        assert (await recompute(kept, blobs, {}, 4)).problem is None
        liar = next(iter(found))
        figures = {**found, liar: found[liar]._replace(with_other=-(found[liar].with_other or 0))}
        compared = {**verification.compared, 4: replace(verification.compared[4], figures=figures)}
        wrong = kept.with_parts(kept.members.verified_as(replace(verification, compared=compared)))
        problem = (await recompute(wrong, blobs, {}, 4)).problem
        assert problem is not None
        assert problem.startswith(f"the result of {liar} in step 4 has a cosine of ")
