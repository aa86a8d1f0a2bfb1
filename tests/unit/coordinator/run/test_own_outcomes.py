"""What a member needs of an outcome: always that of the outcome itself, however it is read."""

from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.run.publication import MAX_READ, OwnOutcomes
from epochal.state.documents import Outcome, OutcomeEntry, OwnOutcome
from epochal.state.intervals import BatchId
from epochal.state.weights import factor_hex, norm_hex
from epochal.state.wire import ClientId, Seed, Sha256, canonical_json, document_digest, parse_document

HASH = Sha256("ab" * 32)
MEMBERS = [ClientId(f"{number:032x}") for number in range(4)]
outcomes = st.builds(
    lambda step, attempt, members: Outcome(
        "run",
        step,
        attempt,
        Seed("11" * 32),
        HASH,
        HASH,
        HASH,
        tuple(
            OutcomeEntry(each, (BatchId(0, 0),), Sha256(each * 2), 1, norm_hex(1.0), factor_hex(1.0))
            for each in members
        ),
    ),
    st.integers(1, MAX_READ + 2),
    st.integers(0, 1),
    st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True),
)


@given(st.lists(outcomes, min_size=1, max_size=12), st.data())
def test_own_part_of_an_outcome_is_that_of_the_whole(found: list[Outcome], data: st.DataObject) -> None:
    known = OwnOutcomes()
    for outcome in found:
        member = data.draw(st.sampled_from(MEMBERS))
        own = known.of(outcome, member)
        entry = next((each.result_sha256 for each in outcome.entries if each.client_id == member), None)
        assert own == OwnOutcome("run", outcome.step, document_digest(outcome), HASH, entry)
        assert parse_document(OwnOutcome, canonical_json(own)) == own
        assert known.encoded(outcome, document_digest(outcome), member) == canonical_json(own)
        assert len(known._read) <= MAX_READ
