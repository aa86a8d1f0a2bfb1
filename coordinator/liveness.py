"""The time at which each member was last heard. It changes with every request, so it is not part of the run.

The machine is only told the result: `ClientsFellSilent`. After a restart every member counts as heard at the start, so
that an outage of the coordinator drops no member.
"""

from collections.abc import Collection

from state.wire import ClientId


class Liveness:
    """The last-heard times of the members, in seconds on the run's clock."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._heard_s: dict[ClientId, float] = {}

    def heard(self, client_id: ClientId, now_s: float) -> None:
        """Record that a request of this client arrived."""
        self._heard_s[client_id] = now_s

    def silent_s(self, client_id: ClientId, now_s: float) -> float:
        """Return the number of seconds since the client was last heard."""
        return now_s - self._heard_s.get(client_id, self._since_s)

    def silent(self, members: Collection[ClientId], now_s: float, timeout_s: float) -> tuple[ClientId, ...]:
        """Return the members that were silent for longer than `timeout_s`, and forget those that have left."""
        if len(self._heard_s) > len(members):
            self._heard_s = {client: at for client, at in self._heard_s.items() if client in members}
        return tuple(client for client in members if self.silent_s(client, now_s) > timeout_s)
