"""The Cooldown step: the epoch's checkpoint. Every client claims a digest; the checkpointer uploads the bytes."""

from epochal.run_manager.context import StepContext
from epochal.run_manager.steps.checkpoint import publish_checkpoint
from epochal.state.documents import RunDocument
from epochal.state.messages.requests import CheckpointReport


class CooldownStep:
    """Cooldown of one run document."""

    def __init__(self, context: StepContext, document: RunDocument) -> None:
        self._context = context
        self._document = document

    async def start(self) -> None:
        """Report this client's replica, with its bytes if this client is the checkpointer.

        Raises:
            Refused: the checkpoint was verified meanwhile, or this client was not in the epoch; no harm is done.
        """
        context, document = self._context, self._document
        step = document.step - 1
        held = await context.keeper.at(step)
        if document.checkpoint is not None and document.checkpoint.step == step:
            return
        if document.checkpointer == context.session.client_id:
            await publish_checkpoint(context, held)
        else:
            # the quorum of claims verifies the checkpointer's bytes
            await context.session.report(CheckpointReport(held.step, held.digest, None, 0))
