"""How tests are dealt to workers: whole files, those that took longest first, so that none waits for a late long one.

The times are in `seconds.json`, which `make test-seconds` measures anew. Files that share something costly run on one
worker, one after the other: a library that takes seconds to import, a browser, a server.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SECONDS = Path(__file__).with_name("seconds.json")
ON_ONE_WORKER = {
    "torch": (
        "tests/unit/trainers/",
        "tests/contract/trainers/",
        "tests/contract/batching/",
        "tests/contract/epochal/test_export",
        "tests/contract/epochal/test_evaluator",
        "tests/unit/epochal/test_check",
        "tests/unit/epochal/tools/export/",
        "tests/contract/epochal/test_adapter_export",
        "tests/contract/epochal/test_benchmarks",
        "tests/contract/epochal/test_sampler",
        "tests/simulation/test_adapter_run",
        "tests/contract/epochal/test_prepare_chat",
        "tests/unit/epochal/test_init",
        "tests/unit/epochal/test_local_run",
        "tests/unit/epochal/test_wrong_options",
        "tests/unit/benchmarks/",
        "tests/unit/batching/",
        "tests/unit/docs/test_blocks",
        "tests/unit/epochal/test_next_commands",
        "tests/unit/epochal/test_public_names",
    ),
    "browser and matplotlib": (
        "tests/browser/",
        "tests/contract/epochal/test_report",
        "tests/unit/epochal/view/test_palette",
        "tests/unit/state/test_html_tables",
    ),
    "bucket": (
        "tests/contract/coordinator/test_object_store",
        "tests/contract/coordinator/test_checkers",
        "tests/contract/coordinator/api/test_api_checkpoint_parts",
        "tests/contract/coordinator/stores/test_object",
        "tests/contract/coordinator/stores/test_shared_blobs",
        "tests/contract/data_providers/test_object_store",
        "tests/contract/epochal/test_prepare.py",
    ),
    "database": (
        "tests/contract/coordinator/stores/test_postgres",
        "tests/contract/coordinator/stores/test_move",
        "tests/contract/coordinator/stores/test_journals",
        "tests/contract/coordinator/stores/test_recorded_blobs",
        "tests/contract/coordinator/stores/test_replications",
        "tests/contract/coordinator/stores/test_stores",
        "tests/contract/coordinator/stores/test_database_urls",
    ),
    "database under attack": (
        "tests/hostile/members/test_abandoned_uploads",
        "tests/hostile/members/test_chatty_member",
        "tests/hostile/members/test_dripping_uploads",
        "tests/hostile/members/test_first_checkpoint",
        "tests/hostile/members/test_slow_readers",
        "tests/hostile/members/test_unread_blobs",
        "tests/hostile/test_anonymous_polls",
        "tests/hostile/test_refused_joins",
        "tests/hostile/test_strangers",
    ),
}
"""The beginnings of the names of files that share something, by its name."""


@cache
def unit_of(file: str) -> str:
    """Return the name of the files that this one is with on one worker: its own if it shares nothing."""
    return next((unit for unit, names in ON_ONE_WORKER.items() if file.startswith(names)), file)


def noted_seconds() -> Mapping[str, float]:
    """Return what files took when that was measured; those that took little are not among them."""
    return json.loads(SECONDS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def longest_first(files: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """Return files so that those of a unit are together, and units that take long come first."""
    units: dict[str, list[str]] = {}
    for file in files:
        units.setdefault(unit_of(file), []).append(file)
    ordered = sorted(units.values(), key=lambda unit: -sum(seconds.get(file, 0) for file in unit))
    return [file for unit in ordered for file in unit]


def file_of(node_id: str) -> str:
    """Return the file of a test."""
    return node_id.partition("::")[0]


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives each worker a unit, and another when it is nearly done, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(file_of(nodeid))
