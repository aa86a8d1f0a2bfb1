"""One pytest session that collects the core's unit tests once, and then runs them on one mutant after another.

Theory of operation. The session records which lines of the core each test executes. A mutant inside a function is then
tried in a fork of this process: the function gets the changed code, and the tests that execute the changed statement
run, the quickest first, until one fails. A mutant of what is executed while modules are imported (constants, defaults,
and the functions that these call) cannot be put into a process that has imported them: it is left to a fresh one,
as is everything when the tests fail without a mutant.
"""

import ast
import gc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutation.forks import Ended, in_forks
from tests.mutation.mutants import Mutant, mutated, source_path
from tests.mutation.survey import Line, Survey, recorded

Told = Callable[[Ended[Mutant]], None]


class MutationSession:
    """A pytest plugin whose session tries mutants in place of running the tests once.

    Attributes:
        survey: what the tests executed, once the session is over.
        imported: the mutants that need a process of their own.
        failed: the test that fails without a mutant, or None.
    """

    def __init__(self, root: Path, mutants: Sequence[Mutant], told: Told, *, jobs: int, max_cpu_s: float) -> None:
        self.survey = Survey()
        self.imported: list[Mutant] = []
        self.failed: str | None = None
        self._root = root
        self._mutants = mutants
        self._told = told
        self._jobs = jobs
        self._max_cpu_s = max_cpu_s
        self._files = frozenset(str(source_path(root, mutant.module)) for mutant in mutants)
        self._sources = {module: source_path(root, module).read_text() for module in {m.module for m in mutants}}
        self._importing = recorded(self.survey.imported, self._files)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self._importing.__enter__()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._importing.__exit__(None, None, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            with self.survey.of_test(item.nodeid, self._files):
                passed = _passes(session, [item])
            if not passed:
                self.failed = item.nodeid
                return True
        self.imported = [mutant for mutant in self._mutants if self._lines_of(mutant) & self.survey.imported]
        found = gc.get_objects()
        functions = [
            item for item in found if isinstance(item, FunctionType) and item.__code__.co_filename in self._files
        ]
        items = {item.nodeid: item for item in session.items}
        calls = (
            (mutant, partial(self._survives, session, mutant, functions, items))
            for mutant in self._mutants
            if mutant not in self.imported
        )
        for ended in in_forks(calls, self._jobs, self._max_cpu_s):
            self._told(ended)
        return True

    def _lines_of(self, mutant: Mutant) -> set[Line]:
        file = str(source_path(self._root, mutant.module))
        return {(file, line) for line in range(mutant.first_line, mutant.last_line + 1)}

    def _survives(
        self, session: pytest.Session, mutant: Mutant, functions: list[FunctionType], items: dict[str, pytest.Item]
    ) -> bool:
        names = self.survey.tests_of(self._lines_of(mutant))
        if not names:
            return True
        file = source_path(self._root, mutant.module)
        tree = ast.fix_missing_locations(mutated(mutant.module, self._sources[mutant.module], mutant.number))
        put_code(compile(tree, str(file), "exec", dont_inherit=True), functions)
        return _passes(session, [items[name] for name in names])


def put_code(module: CodeType, functions: Sequence[FunctionType]) -> None:
    """Give the functions the code that they have in another version of their module, with the same lines."""
    known = dict(_codes_in(module))
    for function in functions:
        code = function.__code__
        if code.co_filename == module.co_filename:
            function.__code__ = known[code.co_qualname, code.co_firstlineno]


def _codes_in(code: CodeType) -> list[tuple[tuple[str, int], CodeType]]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [((each.co_qualname, each.co_firstlineno), each) for each in inner] + [
        found for each in inner for found in _codes_in(each)
    ]


def _passes(session: pytest.Session, items: Sequence[pytest.Item]) -> bool:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True
