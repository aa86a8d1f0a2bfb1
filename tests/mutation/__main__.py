"""Run the unit tests of the pure core on mutants of it (`python -m tests.mutation --help`)."""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401  imported once, before the forks
import hypothesis
import numpy as np
import pydantic  # noqa: F401
import pytest
import safetensors  # noqa: F401
import tomli
import transitions  # noqa: F401

from tests.mutation.mutants import Mutant, mutants_of, mutated, source_path

ROOT = Path(__file__).parents[2]
CORE = ("state", "coordinator/machine")
"""Folders of the pure core. What `state/config` says of fields is data: left out."""
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
TIMEOUT_S = 300
"""Seconds after which a mutant counts as killed: it made the tests hang."""
LEAST_KILLED_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant, and whether a test failed on it."""

    mutant: Mutant
    is_killed: bool
    duration_s: float


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
    return [str(file.relative_to(ROOT).with_suffix("")).replace("/", ".") for file in files]


def all_mutants() -> list[Mutant]:
    """Return every mutant of the core, module by module."""
    return [mutant for name in core_modules() for mutant in mutants_of(name, source_path(ROOT, name).read_text())]


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return why the mutants of `equivalent.toml` change nothing, by module, function and change."""
    entries = tomli.loads(EQUIVALENT.read_text())["mutant"]
    return {(entry["module"], entry["function"], entry["change"]): entry["why"] for entry in entries}


def _test_files(module: str) -> list[str]:
    """Return the core's test files, the one that mirrors the module first."""
    files = sorted(file for folder in CORE for file in (ROOT / "tests/unit" / folder).glob("test_*.py"))
    own = f"test_{module.rpartition('.')[2]}.py"
    return [str(file) for file in sorted(files, key=lambda file: file.name != own)]


def _is_killed(module: str, mutant: Mutant | None) -> bool:
    """Return whether the unit tests fail on the mutant, in a process of their own; None runs them unchanged."""
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)
        if mutant is not None:
            sys.meta_path.insert(0, _MutatedFinder(mutant))
        status = 3
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
            options = [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                "--rootdir",
                str(ROOT),
            ]
            status = int(pytest.main([*options, *_test_files(module)]))
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return status != 0


def run(mutants: Sequence[Mutant]) -> list[Tried]:
    """Return each mutant with its verdict, and print it as it becomes known."""
    tried = []
    for mutant in mutants:
        started_s = time.monotonic()
        killed = _is_killed(mutant.module, mutant)
        tried.append(Tried(mutant, killed, time.monotonic() - started_s))
        print(f"{'killed  ' if killed else 'SURVIVED'} {tried[-1].duration_s:5.1f} s  {mutant}", flush=True)
    return tried


def main() -> int:
    """Draw mutants, run the tests on them, and return 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=85, help="number of mutants to draw (default 85; 0: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--module", action="append", help="only this module, such as coordinator.machine.work")
    options = parser.parse_args()
    hypothesis.settings.register_profile("mutation", derandomize=True)
    known = equivalents()
    found = [m for m in all_mutants() if not options.module or m.module in options.module]
    candidates = [m for m in found if (m.module, m.function, m.change) not in known]
    drawn = np.random.default_rng(options.seed).permutation(len(candidates))[: options.count or len(candidates)]
    if _is_killed("", None):
        print("the unit tests fail without a mutant; run them first: a mutant proves nothing now", file=sys.stderr)
        return 2
    tried = run([candidates[position] for position in sorted(drawn)])
    killed = sum(one.is_killed for one in tried)
    percent = 100 * killed / max(1, len(tried))
    print(
        f"{killed} of {len(tried)} mutants killed ({percent:.1f} %); drawn with seed {options.seed} from "
        f"{len(candidates)} of {len(found)}, the others change nothing (equivalent.toml)"
    )
    return 0 if percent >= LEAST_KILLED_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
