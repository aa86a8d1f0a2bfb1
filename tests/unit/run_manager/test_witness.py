"""`run_manager/steps/witness.py`: what a witness attests."""

from epochal.run_manager.events import Attested
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import in_virtual_time


@in_virtual_time
async def test_attestation_counts_every_known_result() -> None:
    async with simulated_run(state_file(config__total_steps=3), seed=0) as run:
        await run.play(*[ClientSpec()] * 3)
        attested = [event for client in run.clients for event in client.of(Attested)]
        assert {event.count for event in attested} == {3}


@in_virtual_time
async def test_only_elected_witnesses_follow_the_list_of_results() -> None:
    async with simulated_run(state_file(config__total_steps=4, config__witness_nodes=1), seed=0) as run:
        ends = await run.play(*[ClientSpec()] * 4)
        followed = sum(name == "results" for client in run.clients for name in client.link.requests)
        attested = [event for client in run.clients for event in client.of(Attested)]
        assert len({end.replica_digest for end in ends}) == 1
        assert len(run.coordinator.outcomes) == 4
        assert 4 <= followed <= 3 * len(attested), "one client in each round, in few pages"
