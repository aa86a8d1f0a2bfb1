"""The time at which each member was last heard, and where it waits. They change with every request, so they are not
part of the run.

The machine receives only the result: `ClientsFellSilent`. After a restart every member counts as heard at the start, so
that an outage of the coordinator drops no member.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from epochal.coordinator.machine.instructions import Instruction, MembershipChanged
from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.replication import Heartbeats
from epochal.runtime.connections.shedding import Connection
from epochal.state.wire import ClientId

KEY_FREE_AFTER_S = 5.0
"""Time after which another process may use the key of a member of which nothing is heard. It is longer than the pause
between two attempts of a client whose requests fail, and than a coordinator's restart takes a client."""

GONE_AFTER_S = 2.0
"""Time after which a member is lost that has closed its connections and opened no other. A client whose request fails
asks again after 0.1 s, and four times within this time."""

GONE_TIMEOUTS = 0.2
"""Part of `client_timeout_s` after which it is lost instead, if that is shorter and not one of its connections is open:
the operator who writes a short limit knows the network."""

LOOKED_AT_ONCE = 512
"""Number of members that one call checks: with 10,000 members each is checked every two seconds."""

WAITS_LOOKED_AT = 2048
"""Number of waiting members whose connections are checked before a meeting: with 10,000 of them a check takes as long
as some hundred messages, and each is checked every three seconds."""

TOLD_FOR_S = 5.0
"""Time for which a member that was heard is reported to other coordinators of the run: several meetings."""

HasGone = Callable[[], bool]
"""Returns whether the sender of a waiting request has closed the connection."""


class Liveness:
    """The last-heard times of the members, in seconds on the run's clock."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._heard_s: dict[ClientId, float] = {}
        self._waits: dict[ClientId, list[HasGone]] = {}
        self._closed: dict[ClientId, float] = {}
        """Members whose last wait ended because they closed its connection, and when it did."""
        self._gone_s: dict[ClientId, float] = {}
        self._connections: dict[ClientId, set[Connection]] = {}
        self._turn: Iterator[ClientId] = iter(())
        """The members that are still to be checked, of those that there were when the first of them was."""
        self._waits_turn: Iterator[ClientId] = iter(())
        """The waiting members that are still to be checked before a meeting, likewise."""
        self._left_waits: set[ClientId] = set()
        """The waiting members that had closed their connections at the last check."""

    def connected(self, client_id: ClientId, connection: Connection) -> None:
        """Note that a request with this client's token came by this connection."""
        known = self._connections.setdefault(client_id, set())
        if connection not in known:
            known -= {other for other in known if not _is_open(other, client_id)}  # the rest has a bound: more are shed
            known.add(connection)

    def heard(self, client_id: ClientId, now_s: float) -> None:
        """Record that a request of this client arrived."""
        self._heard_s[client_id] = now_s
        self._closed.pop(client_id, None)
        self._gone_s.pop(client_id, None)

    def take_changes(self, run: Run, instructions: Iterable[Instruction]) -> None:
        """Record that members were heard whose joins or reports were kept, by whichever coordinator of the run.

        The one that ticks learns of a member that joined by another coordinator before the report that it was heard.
        """
        for instruction in instructions:
            if isinstance(instruction, MembershipChanged) and instruction.client_id in run.members:
                self.heard(
                    instruction.client_id,
                    max(run.clock.now_s, self._heard_s.get(instruction.client_id, run.clock.now_s)),
                )

    @contextmanager
    def waiting(
        self, client_id: ClientId, has_gone: HasGone, now_s: Callable[[], float] | None = None
    ) -> Iterator[None]:
        """Note that a request of this member waits for news, until the context is left.

        Args:
            client_id: the member.
            has_gone: returns whether it has closed the connection.
            now_s: returns the time, which is reported to others if it has.
        """
        self._waits.setdefault(client_id, []).append(has_gone)
        self._left_waits.discard(client_id)
        try:
            yield
        finally:
            self._forget(client_id, has_gone)
            if client_id not in self._waits and has_gone():
                self._closed[client_id] = self._since_s if now_s is None else now_s()

    @contextmanager
    def waiting_reader(
        self, client_id: ClientId | None, has_gone: HasGone, now_s: Callable[[], float]
    ) -> Iterator[None]:
        """Note that a member's request waits for news, as `waiting`; for a stranger's (None), do nothing.

        The member was heard when the wait ends, unless it has closed the connection.
        """
        if client_id is None:
            yield
            return
        with self.waiting(client_id, has_gone, now_s):
            yield
        if not has_gone():
            self.heard(client_id, now_s())

    def free_in_s(self, client_id: ClientId, now_s: float) -> float:
        """Return the seconds until another process may use this member's key if nothing more is heard; 0 if it may."""
        waits = self._waits.get(client_id, [])
        if waits:
            self.heard(client_id, now_s)  # even if all have gone: it may have closed its connections just now
        for has_gone in [has_gone for has_gone in waits if has_gone()]:
            self._forget(client_id, has_gone)
        return max(0.0, KEY_FREE_AFTER_S - self.silent_s(client_id, now_s))

    def _gone_among(
        self, expected: Collection[ClientId], member_count: int, now_s: float, timeout_s: float
    ) -> tuple[ClientId, ...]:
        """Return the expected members that closed the connections of their waits and sent nothing since, for a while.

        That is `GONE_AFTER_S`, or less where `timeout_s`, the limit of a member's silence, is short (`GONE_TIMEOUTS`).
        Nobody, if these are more than half of all members: then something between them and the coordinator has failed.
        """
        for client in expected:
            waits = self._waits.get(client, [])
            is_closed = all(has_gone() for has_gone in waits) if waits else client in self._closed
            if is_closed:
                self._gone_s.setdefault(client, now_s)
        if 2 * len(self._gone_s) > member_count:
            return ()
        quick_s = min(GONE_AFTER_S, GONE_TIMEOUTS * timeout_s)
        return tuple(
            client
            for client in expected
            if client in self._gone_s
            and now_s - self._gone_s[client] > (quick_s if self._has_no_connection(client) else GONE_AFTER_S)
        )

    def forget_others(self, members: Collection[ClientId]) -> None:
        """Forget those that have left."""
        self._heard_s = {client: at_s for client, at_s in self._heard_s.items() if client in members}
        self._gone_s = {client: since_s for client, since_s in self._gone_s.items() if client in members}
        self._closed = {client: at_s for client, at_s in self._closed.items() if client in members}
        self._connections = {client: known for client, known in self._connections.items() if client in members}

    def _has_no_connection(self, client_id: ClientId) -> bool:
        """Return whether the client's connections are known, and all closed (a proxy keeps some for all clients)."""
        known = self._connections.get(client_id, set())
        return bool(known) and not any(_is_open(connection, client_id) for connection in known)

    def _forget(self, client_id: ClientId, has_gone: HasGone) -> None:
        waits = self._waits.get(client_id, [])
        if has_gone in waits:
            waits.remove(has_gone)
            if not waits:
                del self._waits[client_id]
                self._left_waits.discard(client_id)

    # Other coordinators of the run

    def begin_again(self, now_s: float) -> None:
        """Take every member as heard now, because what other coordinators heard is not known yet."""
        self._since_s = now_s
        self._gone_s.clear()

    def heartbeats(self, now_s: float) -> Heartbeats:
        """Return what others should know: who was heard lately, who waits here, and who has closed its waits.

        Where many wait, each call checks the connections of some of them, in turn.
        """
        lately = {client: at_s for client, at_s in self._heard_s.items() if now_s - at_s <= TOLD_FOR_S}
        for client in self._next_waits():
            if all(has_gone() for has_gone in self._waits[client]):
                self._left_waits.add(client)
            else:
                self._left_waits.discard(client)
        waiting = (client for client in self._waits if client not in self._left_waits)
        return Heartbeats(lately | dict.fromkeys(waiting, now_s), dict(self._closed))

    def _next_waits(self) -> list[ClientId]:
        """Return the waiting members that are checked next; all of them if they are few."""
        if len(self._waits) <= WAITS_LOOKED_AT:
            return list(self._waits)
        found = [client for client in islice(self._waits_turn, WAITS_LOOKED_AT) if client in self._waits]
        if len(found) < WAITS_LOOKED_AT:
            known = set(found)
            self._waits_turn = iter(tuple(self._waits))
            found += (
                client for client in islice(self._waits_turn, WAITS_LOOKED_AT - len(found)) if client not in known
            )
        return found

    def take(self, others: Heartbeats) -> None:
        """Take what another coordinator knows: the latest news of each member counts, whoever has it."""
        for client, at_s in others.heard.items():
            if at_s > self._heard_s.get(client, self._since_s):
                self._heard_s[client] = at_s
            if at_s > self._closed.get(client, at_s):
                del self._closed[client]
            if at_s > self._gone_s.get(client, at_s):
                del self._gone_s[client]
        for client, at_s in others.closed.items():
            if client not in self._waits and at_s >= max(self._heard_s.get(client, self._since_s), self._since_s):
                self._gone_s.setdefault(client, at_s)

    def silent_s(self, client_id: ClientId, now_s: float) -> float:
        """Return the number of seconds since the client was last heard."""
        return now_s - max(self._heard_s.get(client_id, self._since_s), self._since_s)

    def lost(
        self, members: Collection[ClientId], expected: Collection[ClientId], now_s: float, timeout_s: float
    ) -> tuple[ClientId, ...]:
        """Return the members that were silent for longer than `timeout_s`, and the expected ones that have gone.

        Where there are many, each call checks some of them, in turn: it takes no longer for thousands.
        """
        looked = self._next(members)
        silent = tuple(client for client in looked if self.silent_s(client, now_s) > timeout_s)
        others = [client for client in looked if client in expected and client not in silent]
        return silent + self._gone_among(others, len(members), now_s, timeout_s)

    def _next(self, members: Collection[ClientId]) -> list[ClientId]:
        """Return the members that are checked next; those that have left are forgotten once all had their turn."""
        found = [client for client in islice(self._turn, LOOKED_AT_ONCE) if client in members]
        if len(found) < LOOKED_AT_ONCE:
            self.forget_others(members)
            self._turn = iter(tuple(members))
            known = set(found)
            found += (client for client in islice(self._turn, LOOKED_AT_ONCE - len(found)) if client not in known)
        return found


def _is_open(connection: Connection, client_id: ClientId) -> bool:
    """Return whether the connection is open, and no other sender's requests have come by it since."""
    return connection.is_held and connection.owner == client_id
