"""What a mirror's token opens: checkpoints and updates, and nothing else."""

from epochal.state.wire import sha256_hex
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, problem, training


async def token_of(run: Served) -> str:
    made = await run.http.post(f"{run.run_url}/tokens/mirror", headers={"Authorization": f"Bearer {ADMIN}"})
    return str(made.json()["token"])


async def test_mirror_reads_checkpoints_and_no_result(coordinator: Served) -> None:
    first, second = await training(coordinator)
    token = await token_of(coordinator)
    results = [client.result(REPLICA, DIFFERENCE) for client in (first, second)]
    assert (await first.deliver(results[0])).status_code == 200
    (checkpoint,) = coordinator.service.run.models.checkpoints
    assert (await first.send("GET", f"/v1/blobs/{checkpoint.blob_sha256}", token=token)).status_code == 200
    await second.deliver(results[1])
    for data in results:
        refused = await first.send("GET", f"/v1/blobs/{sha256_hex(data)}", token=token)
        assert problem(refused) == "not-found"


async def test_mirror_may_do_nothing_else(coordinator: Served) -> None:
    client, token = WireClient(coordinator, 1), await token_of(coordinator)
    for method, place in (("POST", "/replays"), ("POST", "/checks"), ("POST", "/pause"), ("GET", "/clients/me")):
        refused = await client.send(method, place, token=token)
        assert problem(refused) in ("unauthorized", "forbidden"), place
