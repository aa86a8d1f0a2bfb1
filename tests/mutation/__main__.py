"""Run the unit tests of the pure core on mutants of it (`python -m tests.mutation --help`)."""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType

import numpy as np
import pytest
import tomli

from tests.mutation.forks import Ended, in_forks, silence
from tests.mutation.mutants import Mutant, mutants_of, mutated, source_path
from tests.mutation.session import MutationSession

ROOT = Path(__file__).parents[2]
CORE = ("state", "state/model", "coordinator/machine", "coordinator/machine/parts")
"""Folders of the pure core. What `state/config` says of fields is data: left out."""
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
MAX_CPU_S = 120.0
"""Processor time after which a mutant counts as killed: it made the tests hang."""
LEAST_KILLED_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Rest:
    """What a session of tests leaves.

    Attributes:
        failed: the test that fails without a mutant, or None.
        imported: mutants that need fresh processes.
        cpu_s: processor time of each test.
        libraries: modules that the tests imported from outside the repository.
    """

    failed: str | None
    imported: list[Mutant]
    cpu_s: dict[str, float]
    libraries: list[str]


class _MutatedLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from a changed syntax tree."""

    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.get_filename(fullname), "exec", dont_inherit=True)


class _MutatedFinder(importlib.abc.MetaPathFinder):
    """Finds the mutated module in place of the one on disk."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        file = source_path(ROOT, fullname)
        loader = _MutatedLoader(fullname, str(file))
        loader.tree = ast.fix_missing_locations(mutated(fullname, file.read_text(), self._mutant.number))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


def core_modules() -> list[str]:
    """Return the dotted names of the modules of the pure core."""
    files = [file for folder in CORE for file in sorted((ROOT / folder).glob("*.py")) if file.name != "__init__.py"]
    return [f"epochal.{file.relative_to(ROOT).with_suffix('')}".replace("/", ".") for file in files]


def all_mutants() -> list[Mutant]:
    """Return every mutant of the core, module by module."""
    return [mutant for name in core_modules() for mutant in mutants_of(name, source_path(ROOT, name).read_text())]


def equivalents() -> dict[tuple[str, str, str, int], str]:
    """Return why the mutants of `equivalent.toml` change nothing, by their keys."""
    entries = tomli.loads(EQUIVALENT.read_text())["mutant"]
    return {
        (entry["module"], entry["function"], entry["change"], entry.get("nth", 0)): entry["why"] for entry in entries
    }


def _test_files() -> list[str]:
    return [str(file) for folder in CORE for file in sorted((ROOT / "tests/unit" / folder).glob("test_*.py"))]


def _pytest(*plugins: object) -> int:
    """Run the core's unit tests in this process until one fails, and return pytest's exit code."""
    options = ["-x", "-q", "--rootdir", str(ROOT), "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    unused = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis"]
    return int(pytest.main([*options, *unused, *_test_files()], plugins=list(plugins)))


class _QuickestFirst:
    """A pytest plugin that orders the tests by the time that they took."""

    def __init__(self, cpu_s: dict[str, float]) -> None:
        self._cpu_s = cpu_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._cpu_s.get(item.nodeid, 0.0))


def _survives_fresh(mutant: Mutant, cpu_s: dict[str, float]) -> bool:
    """Return whether all tests pass on the mutant. This process must not have imported its module yet."""
    sys.meta_path.insert(0, _MutatedFinder(mutant))
    return _pytest(_QuickestFirst(cpu_s)) == 0


def _libraries() -> list[str]:
    own = {path.name for path in ROOT.iterdir()}
    return [name for name in sys.modules if name.partition(".")[0] not in own and not name.startswith(("_", "test"))]


def _session(mutants: Sequence[Mutant], jobs: int, results: Connection) -> None:
    """Try the mutants that one session can, and send each result, and then what it leaves to others."""
    silence()
    session = MutationSession(ROOT, mutants, results.send, jobs=jobs, max_cpu_s=MAX_CPU_S)
    if _pytest(session) == pytest.ExitCode.INTERNAL_ERROR:
        raise RuntimeError("the session of tests broke off")
    results.send(Rest(session.failed, session.imported, session.survey.cpu_s, _libraries()))


def tried(mutants: Sequence[Mutant], jobs: int) -> Iterator[Ended[Mutant]]:
    """Yield each mutant with whether it survives the tests. Raise `RuntimeError` if they fail without any."""
    forks = multiprocessing.get_context("fork")
    results, sender = forks.Pipe(duplex=False)
    process = forks.Process(target=_session, args=(mutants, jobs, sender))
    process.start()
    sender.close()
    while isinstance(result := results.recv(), Ended):
        yield result
    process.join()
    assert isinstance(result, Rest)
    if result.failed is not None:
        raise RuntimeError(f"{result.failed} fails without a mutant; a mutant proves nothing now")
    for library in result.libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)  # once, before the forks
    calls = ((mutant, partial(_survives_fresh, mutant, result.cpu_s)) for mutant in result.imported)
    yield from in_forks(calls, jobs, MAX_CPU_S)


def main() -> int:
    """Draw mutants, run the tests on them, and return 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=85, help="number of mutants to draw (default 85; 0: all)")
    parser.add_argument("--seed", type=int, action="append", help="seed of a draw (default 0); may be repeated")
    parser.add_argument("--module", action="append", help="only this module, such as epochal.coordinator.machine.work")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of mutants tried at once")
    options = parser.parse_args()
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"
    known = equivalents()
    found = [m for m in all_mutants() if not options.module or m.module in options.module]
    candidates = [m for m in found if m.key not in known]
    drawn = {seed: _draw(candidates, options.count, seed) for seed in options.seed or [0]}
    chosen = {number for numbers in drawn.values() for number in numbers}
    killed: set[Mutant] = set()
    for result in tried([candidates[number] for number in sorted(chosen)], options.jobs):
        if not result.is_true:
            killed.add(result.key)
        print(f"{'SURVIVED' if result.is_true else 'killed  '} {result.duration_s:5.1f} s  {result.key}", flush=True)
    print(f"{len(found) - len(candidates)} of {len(found)} mutants change nothing (equivalent.toml)")
    least_percent = 100.0
    for seed, numbers in drawn.items():
        killed_count = sum(candidates[number] in killed for number in numbers)
        percent = 100 * killed_count / max(1, len(numbers))
        least_percent = min(least_percent, percent)
        print(f"{killed_count} of {len(numbers)} mutants killed ({percent:.1f} %); drawn with seed {seed}")
    return 0 if least_percent >= LEAST_KILLED_PERCENT else 1


def _draw(candidates: Sequence[Mutant], count: int, seed: int) -> list[int]:
    """Return the positions of randomly drawn mutants; of all for a count of 0."""
    order = np.random.default_rng(seed).permutation(len(candidates))
    return [int(position) for position in order[: count or len(candidates)]]


if __name__ == "__main__":
    sys.exit(main())
