"""`run_manager/steps/witness.py`: what a witness attests."""

from epochal.run_manager.events import Attested
from epochal.state.errors import CoordinatorUnreachable
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import BOUND_S, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time


@in_virtual_time
async def test_attestation_counts_every_known_result() -> None:
    async with simulated_run(state_file(config__total_steps=3), seed=0) as run:
        await run.play(*[ClientSpec()] * 3)
        attested = [event for client in run.clients for event in client.of(Attested)]
        assert {(event.received_count, event.known_count) for event in attested} == {(3, 3)}


@in_virtual_time
async def test_witness_that_cannot_fetch_a_result_attests_what_it_holds() -> None:
    """Two of three are cut off from the others' blobs, so that the third one is no quorum."""
    async with simulated_run(state_file(config__total_steps=6), seed=0) as run:
        is_cut = False

        def no_blobs(name: str, leg: str) -> None:
            if name == "get_blob" and is_cut:
                raise CoordinatorUnreachable("the way to the blobs is cut")

        cut_off = [run.start(run.client(number, faults=no_blobs)) for number in (1, 2)]
        clients = [*cut_off, run.start(run.client(3))]
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 3)
        is_cut = True
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 4)
        is_cut = False
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        (outcome,) = (outcome for outcome in run.coordinator.outcomes if outcome.step == 3)
        included = {entry.client_id for entry in outcome.entries}
        assert included < {client.client_id for client in clients}
        assert included & {client.client_id for client in cut_off}, "each holds its own result"


@in_virtual_time
async def test_only_elected_witnesses_follow_the_list_of_results() -> None:
    async with simulated_run(state_file(config__total_steps=4, config__witness_nodes=1), seed=0) as run:
        ends = await run.play(*[ClientSpec()] * 4)
        followed = sum(name == "results" for client in run.clients for name in client.link.requests)
        attested = [event for client in run.clients for event in client.of(Attested)]
        assert len({end.replica_digest for end in ends}) == 1
        assert len(run.coordinator.outcomes) == 4
        assert 4 <= followed <= 3 * len(attested), "one client in each round, in few pages"
