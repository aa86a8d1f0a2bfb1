"""The guide of how a machine joins, over HTTP: what it says, and who may read it."""

from epochal.state.shown.join_guide import JoinGuide
from epochal.state.shown.spool_room import spool_bytes
from epochal.state.wire import parse_document
from tests.support.data.states import state_file
from tests.support.drive.served import REPLICA, Served, served, training


async def guide_of(coordinator: Served, token: str | None = None) -> JoinGuide:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await coordinator.http.get(f"{coordinator.run_url}/join", headers=headers)
    assert answer.status_code == 200, answer.text
    found: JoinGuide = parse_document(JoinGuide, answer.content)
    return found


async def test_guide_names_trainer_and_room_of_the_run() -> None:
    async with served(state_file(model__LLM__data_location={"Server": "h:9"}, merge__codec="float32")) as coordinator:
        await training(coordinator, count=2)
        found = await guide_of(coordinator)
        assert (found.run_id, found.version, found.access, found.trainer) == ("test-run", "test", "open", "numpy")
        assert found.data.places == ("h:9",)
        assert found.room is not None
        run, values = coordinator.service.run, REPLICA.layout.size_bytes
        assert run.models.checkpoint is not None
        assert found.room.download_bytes == run.models.checkpoint.size_bytes
        assert (found.room.parameter_count, found.room.result_bytes) == (6, values)
        assert found.room.spool_bytes == spool_bytes(REPLICA.layout, run.state_file)


async def test_guide_says_that_an_invitation_is_needed_and_shows_none() -> None:
    state = state_file(access__mode="invitations", access__invitations=["ab" * 32])
    async with served(state) as coordinator:
        answer = await coordinator.http.get(f"{coordinator.run_url}/join")
        assert parse_document(JoinGuide, answer.content).access == "invitations"
        assert "ab" * 32 not in answer.text
