"""Step 0: no member decides what a run starts from, and a client that is served another model says so and leaves."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.state.errors import Refused
from epochal.state.messages.requests import CheckpointReport
from epochal.state.model.first_model import FirstModel
from epochal.state.model.replica import Replica, checkpoint_bytes, first_replica, replica_digest
from epochal.state.phase_names import RunState
from epochal.state.wire import sha256_hex
from epochal.trainers.first_parameters import make_first_model
from tests.support.bounds import BOUND_S
from tests.support.data.spooled import spooled
from tests.support.data.states import state_file
from tests.support.drive.by_hand import ByHand, joined_by_hand
from tests.support.drive.processes import PATIENT, SMALL_MODEL, Condition, in_phase, prepared_run, real_run, run_command
from tests.support.drive.run_place import RunPlace

RUN = {"config__total_steps": 2, "config__max_round_train_time": 10, **PATIENT}
EVIL = first_replica(0, {"evil": np.ones((3, 3), np.float32)})


def enormous() -> Replica:
    """A first replica of the run's model whose values are finite, and with which nobody can train."""
    honest = make_first_model(state_file(model__LLM__ngram=SMALL_MODEL), 0).replica
    return first_replica(0, {name: np.full_like(values, 3e38) for name, values in honest.parameters.items()})


def asked(hand: ByHand) -> Condition:
    """Return a condition: this member has to write the checkpoint."""
    return lambda document: document.checkpointer == hand.client_id


async def offer(hand: ByHand, replica: Replica) -> Refused:
    """Offer a first checkpoint as a member; return the refusal."""
    data = checkpoint_bytes(replica)
    claim = CheckpointReport(0, replica_digest(replica), sha256_hex(data), len(data))
    try:
        await hand.api.report(claim)
        await hand.api.put_blob(sha256_hex(data), spooled(data))
    except Refused as refusal:
        return refusal
    raise AssertionError("a member's first checkpoint was accepted")


async def test_only_member_of_a_new_run_cannot_decide_what_it_starts_from(place: RunPlace) -> None:
    async with real_run(place, **RUN) as run, joined_by_hand(run, 1) as attacker:
        warmup = await attacker.watch.until(in_phase(RunState.WARMUP))
        assert warmup.checkpointer is None
        assert warmup.checkpoint is not None
        honest = replica_digest(make_first_model(state_file(model__LLM__ngram=SMALL_MODEL), 0).replica)
        assert warmup.checkpoint.replica_digest == honest
        assert (await offer(attacker, EVIL)).kind == "not-now"
        await attacker.api.withdraw()
        await run.start_client()
        assert (await run.finish()).rounds == 2


@pytest.mark.nightly
async def test_elected_member_cannot_start_a_run_from_a_spoiled_model(place: RunPlace) -> None:
    async with (
        real_run(place, access__genesis="members", config__init_min_clients=2, **RUN) as run,
        joined_by_hand(run, 1) as first,
        joined_by_hand(run, 2) as second,
    ):
        warmup = await first.watch.until(in_phase(RunState.WARMUP))
        attackers = sorted((first, second), key=lambda hand: hand.client_id != warmup.checkpointer)
        for hand, replica, rule in zip(attackers, (EVIL, enormous()), ("layout", "max_abs"), strict=True):
            await hand.watch.until(asked(hand))
            refusal = await offer(hand, replica)
            assert (refusal.kind, refusal.context["rule"]) == ("result-invalid", rule)
        for hand in attackers:
            await hand.api.withdraw()
        for _ in range(2):
            await run.start_client()
        assert (await run.finish()).rounds == 2


async def test_client_that_is_served_another_model_says_so_and_leaves(tmp_path: Path) -> None:
    state = state_file(config__init_min_clients=1, config__waiting_for_members_extra_time=0.05)

    async def make(step: int) -> FirstModel:
        return FirstModel.of(state.model.LLM.spec, EVIL)

    options = ServeOptions(str(tmp_path / "run"), Endpoint(port=0), genesis=Genesis(make=make))  # accepts any layout
    async with serving(state, options) as coordinator:
        ran = await run_command("client", coordinator.url)
    ran.expect(2, "it has no 'embedding' of shape", "Tell the run's operator")


@pytest.mark.nightly
async def test_run_waits_for_the_first_checkpoint_that_another_machine_makes(place: RunPlace) -> None:
    async with prepared_run(place, **RUN) as run:
        await run.start_coordinator("--no-genesis")
        await run.start_client()
        async with asyncio.timeout(BOUND_S):
            while not (await run.status()).member_count:
                continue
        assert "waits for its first checkpoint" in (await run.status()).reason
        (await run.command("genesis", run.url, "--admin-token", "a guess")).expect(1, "admin token")
        told = await run.command("genesis", run.url, "--seed", "7", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        made = make_first_model(state_file(model__LLM__ngram=SMALL_MODEL), 0, 7).replica
        told.expect(0, f"the run starts from replica 0, digest {replica_digest(made)}\n")
        again = await run.command("genesis", run.url, "--seed", "8", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        again.expect(1, "has a first checkpoint already")
        assert (await run.finish()).rounds == 2
