"""Which lines of the core each unit test executes, so that a mutant is tried on the tests that can notice it only."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

Line = tuple[str, int]
"""File and line number."""


@dataclass(slots=True)
class Survey:
    """What the tests executed when nothing was changed.

    Attributes:
        imported: lines executed while the tests were collected: those of modules and classes, and what they call.
        lines: the lines that each test executed, by its id.
        cpu_s: the processor time that each test took.
    """

    imported: set[Line] = field(default_factory=set)
    lines: dict[str, set[Line]] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of_test(self, name: str, files: frozenset[str]) -> Iterator[None]:
        """Record the lines and the time of a test."""
        began_s = time.process_time()
        with recorded(self.lines.setdefault(name, set()), files):
            yield
        self.cpu_s[name] = time.process_time() - began_s

    def tests_of(self, lines: set[Line]) -> list[str]:
        """Return the tests that execute one of the lines, the quickest first."""
        found = [name for name, executed in self.lines.items() if not lines.isdisjoint(executed)]
        return sorted(found, key=lambda name: self.cpu_s[name])


@contextmanager
def recorded(lines: set[Line], files: frozenset[str]) -> Iterator[None]:
    """Record the lines of these files that are executed, until the context ends."""
    missing: dict[CodeType, set[int]] = {}

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        if code not in missing:
            missing[code] = {line for _, _, line in code.co_lines() if line is not None}
        return go_on if missing[code] else None

    def go_on(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            missing[frame.f_code].discard(frame.f_lineno)
        return go_on

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)
