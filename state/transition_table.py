"""A table of states and transitions as data: what `transitions.Machine` runs, and what the documentation draws.

A table has no callbacks and no state of its own: a trigger fired from a given state leads to another state.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from transitions import Machine, MachineError

S = TypeVar("S", bound=StrEnum)

EVERY_STATE = "*"
"""As the source of a row: each state."""


class TransitionTable(Generic[S]):
    """A machine over the members of an enum.

    Args:
        states: the enum; its first member is the initial state.
        rows: (trigger, source, destination), and the condition in words where the documentation draws the table. The
            source is a state, a list of states, or `EVERY_STATE`.
    """

    def __init__(self, states: type[S], rows: Sequence[tuple[Any, ...]]) -> None:
        self._states = tuple(states)
        self._rows = rows
        self._machine = Machine(
            model=None,
            states=states,
            transitions=[list(row[:3]) for row in rows],
            initial=self._states[0],
            auto_transitions=False,
        )

    def fire(self, state: S, trigger: str) -> S | None:
        """Return the state that the trigger leads to from `state`, or None where the table has no such transition."""
        at = SimpleNamespace(state=state)
        try:
            self._machine.events[trigger].trigger(at)
        except (KeyError, MachineError):
            return None
        found: S = at.state
        return found

    def conditions(self) -> list[tuple[str, str, str]]:
        """Return (source, destination, condition) of each row with one source; the rows must have conditions."""
        return [
            (source.value, goal.value, condition) for _, source, goal, condition in self._rows if source != EVERY_STATE
        ]

    def grid(self, triggers: Iterable[str]) -> str:
        """Return where each trigger leads from each state, as a Markdown table."""
        lines = [f"| | {' | '.join(self._states)} |", "|---" * (len(self._states) + 1) + "|"]
        for trigger in triggers:
            cells = (self.fire(state, trigger) or "–" for state in self._states)
            lines.append(f"| {trigger} | {' | '.join(cells)} |")
        return "\n".join(lines)
