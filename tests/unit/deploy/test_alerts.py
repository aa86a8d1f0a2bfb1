"""`deploy/prometheus/alerts.yml`: its metrics exist, and alerts fire when they should, by Prometheus's own tool."""

import re
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from docs.metrics_tables import PROGRAMS, table
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.deployment import DEPLOY
from tests.support.heavy import need_program

PATH = DEPLOY / "prometheus/alerts.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(PATH.read_text("utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
BY_NAME = {rule["alert"]: rule for rule in RULES}
PROMETHEUS_OWN = {"up", "process_open_fds", "process_max_fds", "process_cpu_seconds_total"}
LABELS = {"job", "instance", "le"}
VALUES = {"phase": {phase.value for phase in RunState}, "outcome": {"applied", "empty"}}
"""Values of labels that rules name."""
INTERVAL = "30s"
"""Time between two readings; the scenes last for 75 minutes."""
COORDINATOR = 'job="epochal-coordinator-a"'
DATA = 'job="epochal-data-a"'

Series: TypeAlias = dict[str, str]
Fired: TypeAlias = dict[str, list[dict[str, str]]]


def metrics() -> dict[str, set[str]]:
    """Return the labels of every metric of docs/metrics.md by its name, and those of histograms' series."""
    found: dict[str, set[str]] = {}
    for program in PROGRAMS.values():
        for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", table(program), re.MULTILINE):
            found[name] = set(re.findall(r"`(\w+)`", labels))
            if kind == "histogram":
                found |= {f"{name}_{part}": found[name] for part in ("bucket", "count", "sum")}
    return found


@pytest.mark.parametrize("name", BY_NAME)
def test_alert_uses_metrics_labels_and_values_that_exist(name: str) -> None:
    known, expression = metrics(), BY_NAME[name]["expr"]
    named = set(re.findall(r"\b(?:epochal|process)_\w+|\bup\b", expression))
    assert named
    assert named - set(known) - PROMETHEUS_OWN == set()
    labels = LABELS.union(*(known.get(metric, ()) for metric in named))
    for label, values in re.findall(r'(\w+)=~?"([^"]*)"', expression):
        assert label in labels
        assert label not in VALUES or set(values.split("|")) <= VALUES[label]
    for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels


@pytest.mark.parametrize("name", BY_NAME)
def test_alert_says_what_it_means_and_what_to_do(name: str) -> None:
    rule = BY_NAME[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert all(rule["annotations"][key].endswith(".") for key in ("summary", "description"))


def coordinators(metric: str, one: str, two: str, more: str = "") -> Series:
    """Return a metric's values at two coordinators."""
    return {f'{metric}{{{COORDINATOR}, instance="{name}"{more}}}': text for name, text in (("1", one), ("2", two))}


JOB = {"job": "epochal-coordinator-a"}
ONE, TWO = JOB | {"instance": "1"}, JOB | {"instance": "2"}
SCENES: dict[str, tuple[Series, Fired]] = {
    "all is well": (
        coordinators("up", "1x160", "1x160")
        | coordinators("epochal_coordinator_ticking", "1x160", "0x160")
        | coordinators("epochal_coordinator_others", "1x160", "1x160")
        | coordinators("epochal_coordinator_store_problem", "0x160", "0x160")
        | coordinators("epochal_run_step", "0+1x160", "0+1x160")
        | coordinators("epochal_run_phase", "1x160", "1x160", ', phase="RoundTrain"')
        | coordinators("epochal_run_rounds_total", "0+1x160", "0+1x160", ', outcome="applied"')
        | coordinators("process_cpu_seconds_total", "0+2x160", "0+2x160")
        | coordinators("epochal_http_connections_shed_total", "0x160", "0x160", ', reason="readers"'),
        {},
    ),
    "the one that ticked is lost, and another ticks": (
        coordinators("up", "1x100 0x60", "1x160")
        | coordinators("epochal_coordinator_ticking", "1x100 _x60", "0x101 1x60")
        | coordinators("epochal_coordinator_others", "1x100 _x60", "1x101 0x60"),
        {"EpochalCoordinatorDown": [ONE]},
    ),
    "nobody answers": (
        coordinators("up", "0x160", "0x160"),
        {"EpochalCoordinatorDown": [ONE, TWO], "EpochalRunUnserved": [JOB]},
    ),
    "the database is away for all": (
        coordinators("epochal_coordinator_store_problem", "1x160", "1x160")
        | coordinators("epochal_coordinator_ticking", "0x160", "0x160"),
        {"EpochalStoreProblem": [ONE, TWO], "EpochalRunHolds": [JOB], "EpochalNobodyTicks": [JOB]},
    ),
    "the database is away for one, which sees nobody": (
        coordinators("epochal_coordinator_store_problem", "1x160", "0x160")
        | coordinators("epochal_coordinator_others", "0x160", "1x160"),
        {"EpochalStoreProblem": [ONE], "EpochalReplicaAlone": [JOB]},
    ),
    "two servers take writes after a failover": (
        coordinators("epochal_coordinator_ticking", "1x160", "1x160"),
        {"EpochalSeveralTick": [JOB]},
    ),
    "the database is slow": (
        {
            f'epochal_coordinator_journal_append_duration_seconds_bucket{{{COORDINATOR}, le="{le}"}}': f"0+{step}x160"
            for le, step in (("0.1", 5), ("1", 10), ("+Inf", 10))
        },
        {"EpochalStoreSlow": [JOB]},
    ),
    "the run stands while it trains, with empty rounds": (
        coordinators("epochal_run_step", "7x160", "7x160")
        | coordinators("epochal_run_phase", "1x160", "1x160", ', phase="RoundWitness"')
        | coordinators("epochal_run_rounds_total", "0+1x160", "0x160", ', outcome="empty"'),
        {"EpochalRunStands": [JOB], "EpochalRoundsEmpty": [JOB]},
    ),
    "the run is paused": (
        coordinators("epochal_run_step", "7x160", "7x160")
        | coordinators("epochal_run_phase", "1x160", "1x160", ', phase="Paused"'),
        {},
    ),
    "too few members": (
        coordinators("epochal_run_phase", "1x160", "1x160", ', phase="WaitingForMembers"'),
        {"EpochalTooFewMembers": [JOB]},
    ),
    "data failed and a blob is lost": (
        coordinators("epochal_run_quarantined_batches", "0x100 3x60", "0x100 3x60")
        | coordinators("epochal_coordinator_blobs_lost", "0x160", "1x160"),
        {"EpochalDataQuarantined": [JOB], "EpochalBlobsLost": [JOB]},
    ),
    "checkers do not keep up": (
        coordinators("epochal_coordinator_checks_waiting", "4x160", "0x80 1 0x79"),
        {"EpochalChecksWait": [ONE]},
    ),
    "too much for one process": (
        coordinators("epochal_http_connections_shed_total", "0+100x160", "0x160", ', reason="strangers"')
        | coordinators("process_open_fds", "900x160", "100x160")
        | coordinators("process_max_fds", "1000x160", "1000x160")
        | coordinators("process_cpu_seconds_total", "0+30x160", "0+1x160"),
        {"EpochalConnectionsShed": [ONE], "EpochalFilesShort": [ONE], "EpochalBusy": [ONE]},
    ),
    "a data server is down and another is cut off": (
        {
            f'up{{{DATA}, instance="1"}}': "0x160",
            f'up{{{DATA}, instance="2"}}': "1x160",
            f'epochal_data_server_follower_lag_seconds{{{DATA}, instance="2"}}': "0+10x160",
            f'epochal_data_server_request_duration_seconds_count{{{DATA}, instance="2", answer="corrupt"}}': "0+2x160",
            f'epochal_data_server_request_duration_seconds_count{{{DATA}, instance="2", answer="samples"}}': "0+8x160",
        },
        {
            "EpochalDataServerDown": [{"job": "epochal-data-a", "instance": "1"}],
            "EpochalDataServerBehind": [{"job": "epochal-data-a", "instance": "2"}],
            "EpochalDataServerErrors": [{"job": "epochal-data-a", "instance": "2"}],
        },
    ),
}
"""What Prometheus has read, and which alerts fire in the end, with their labels. All others are silent then."""


@pytest.mark.nightly
def test_each_alert_fires_in_its_scene_and_no_other(tmp_path: Path) -> None:
    promtool = need_program("promtool")
    assert {name for _, fired in SCENES.values() for name in fired} == set(BY_NAME)
    tests = [
        {
            "name": scene,
            "interval": INTERVAL,
            "input_series": [{"series": key, "values": text} for key, text in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": "75m",
                    "alertname": name,
                    "exp_alerts": [
                        {"exp_labels": rule["labels"] | labels, "exp_annotations": rule["annotations"]}
                        for labels in fired.get(name, ())
                    ],
                }
                for name, rule in BY_NAME.items()
            ],
        }
        for scene, (series, fired) in SCENES.items()
    ]
    wanted = {"rule_files": [str(PATH)], "evaluation_interval": INTERVAL, "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(wanted), encoding="utf-8")
    ran = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True, timeout=BOUND_S
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
