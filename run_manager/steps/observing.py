"""The Observing step, while the run waits: this client asks whether it is the one that the run waits for."""

from dataclasses import dataclass

from epochal.coordinator_client.session import CoordinatorSession
from epochal.state.documents import RunDocument


@dataclass(frozen=True, slots=True)
class ObservingStep:
    """A phase in which the run waits."""

    session: CoordinatorSession

    async def start(self, document: RunDocument) -> None:
        """Ask for this client's standing. If it rests because it missed rounds, the session logs how long and why."""
        del document
        await self.session.standing()
