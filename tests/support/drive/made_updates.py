"""The updates of a served run, and whether they are the means of its outcomes."""

import asyncio

from epochal.coordinator.run.service import CoordinatorService
from epochal.state.documents import UpdateRef
from epochal.state.model.tensors import TensorLayout
from epochal.state.results import decode_result
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, update_bytes
from epochal.state.wire import sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.served import REPLICA


async def update_of(service: CoordinatorService, step: int) -> UpdateRef:
    """Return the update of a step, once it is made."""
    async with asyncio.timeout(BOUND_S):
        while (found := service.run.models.updates.get(step)) is None:
            await service.readers.wait_published(service.published.version, None, 1.0)
    return found


async def check_update(service: CoordinatorService, step: int, layout: TensorLayout = REPLICA.layout) -> None:
    """Check that the update of a step is what its outcome's results make."""
    named = await update_of(service, step)
    outcome = service.run.models.outcomes[step]
    rule = UpdateRule.of(service.run.state_file.merge)
    results = [
        (Weight.of(entry), decode_result(await blob_bytes(service.blobs, entry.result_sha256), layout)[1])
        for entry in outcome.entries
    ]
    assert sha256_hex(update_bytes(UpdateHeader.of(outcome, rule), rule, layout, results)) == named.blob_sha256
