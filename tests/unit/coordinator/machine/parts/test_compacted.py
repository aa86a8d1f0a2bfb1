"""The run names the proof of its journal's first segments, and clients do not see it."""

from epochal.coordinator.machine.parts.run_identity import CompactedJournal, config_json
from epochal.coordinator.machine.stimuli import JournalCompacted
from epochal.coordinator.machine.views import document_of
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import digest_of, in_round


def test_run_names_the_proof_of_the_most_segments() -> None:
    driver = in_round(1, 2)
    before = document_of(driver.run, 1)
    for count, proof in ((2, "two"), (1, "one"), (2, "another")):
        driver.send(JournalCompacted(count, digest_of(proof)))
    assert driver.run.identity.compacted == CompactedJournal(2, digest_of("two"))
    assert document_of(driver.run, 1) == before


def test_what_is_kept_of_the_journal_is_not_in_the_clients_config() -> None:
    assert config_json(state_file(run__keep_journal="compact")) == config_json(state_file())
