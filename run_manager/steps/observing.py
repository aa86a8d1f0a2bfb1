"""The Observing step: nothing to do, so this client asks whether it is the one that the run waits for."""

from epochal.run_manager.context import StepContext


class ObservingStep:
    """A phase in which the run waits."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def start(self) -> None:
        """Ask how this client stands: if it rests because it missed rounds, the session logs for how long and why."""
        await self._context.session.standing()
