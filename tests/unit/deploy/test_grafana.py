"""`deploy/grafana/epochal.json`: its metrics and labels exist, and every panel says what it shows."""

import json
import re
from typing import Any

import pytest

from tests.support.deployment import DEPLOY
from tests.unit.deploy.test_alerts import LABELS, PROMETHEUS_OWN, metrics

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/epochal.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROCESS = PROMETHEUS_OWN | {"process_resident_memory_bytes"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"].replace(" ", "-"))
def test_panel_uses_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    known = metrics()
    for target in panel["targets"]:
        named = set(re.findall(r"\b(?:epochal|process)_\w+|\bup\b", target["expr"]))
        assert named
        assert named - set(known) - PROCESS == set()
        labels = LABELS.union(*(known.get(metric, ()) for metric in named))
        for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
            assert {label.strip() for label in group.split(",")} <= labels
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_variables_are_those_that_queries_name() -> None:
    named = {
        found for panel in PANELS for target in panel["targets"] for found in re.findall(r"\$(\w+)", target["expr"])
    }
    assert named - {"__rate_interval"} == {one["name"] for one in DASHBOARD["templating"]["list"]} - {"source"}


def test_panels_have_a_place_of_their_own_and_say_what_they_show() -> None:
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)
    assert all(panel["description"].endswith(".") for panel in PANELS)
