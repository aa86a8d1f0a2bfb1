"""A table of states and transitions as data: `transitions.Machine` takes it as it stands, runs it, and it can be drawn.

No callbacks hang on a table, and it has no state of its own: a trigger is fired from a given state, and gives another.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from transitions import Machine, MachineError, Transition

S = TypeVar("S", bound=StrEnum)


class _Labelled(Transition):
    """A transition with a condition in words, which only the drawing reads."""

    def __init__(self, *args: Any, label: str = "", **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.label = label


class _TableMachine(Machine):
    transition_cls = _Labelled


class TransitionTable(Generic[S]):
    """A machine over the members of an enum.

    Args:
        states: the enum; its first member is the initial state.
        rows: keywords of `Machine.add_transition`, and the condition in words as `label`.
    """

    def __init__(self, states: type[S], rows: Sequence[dict[str, Any]]) -> None:
        self._states = states
        self._machine = _TableMachine(
            model=None, states=states, transitions=rows, initial=next(iter(states)), auto_transitions=False
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

    def diagram(self) -> str:
        """Return the table as a Mermaid state diagram."""
        first = next(iter(self._states))
        lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
        for row in self._machine.get_transitions():
            source, goal = self._states[str(row.source)], self._states[str(row.dest)]
            label = getattr(row, "label", "")
            lines.append(f"    {source.value} --> {goal.value}" + (f": {label}" if label else ""))
        return "\n".join(lines)

    def grid(self, triggers: Iterable[str]) -> str:
        """Return where each trigger leads from each state, as a Markdown table."""
        states = tuple(self._states)
        lines = [f"| | {' | '.join(state.value for state in states)} |", "|---" * (len(states) + 1) + "|"]
        for trigger in triggers:
            goals = (self.fire(state, trigger) for state in states)
            cells = ("–" if goal is None else goal.value for goal in goals)
            lines.append(f"| {trigger} | {' | '.join(cells)} |")
        return "\n".join(lines)
