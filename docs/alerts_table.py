"""The table of alerts on the site's page of operating, from the rules that Prometheus reads."""

from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parent.parent / "deploy/prometheus/alerts.yml"


def table() -> str:
    """Return a row for each alert: its name, expression and duration, what it means, and what to do."""
    lines = ["| alert | it means | what to do | when |", "|---|---|---|---|"]
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    lines += [_row(rule) for group in groups for rule in group["rules"]]
    return "\n".join(lines)


def _row(rule: dict[str, Any]) -> str:
    expression = " ".join(rule["expr"].split()).replace("|", r"\|")
    notes = rule["annotations"]
    lasts = f", for {rule['for']}" if "for" in rule else ""
    name = f"`{rule['alert']}`, {rule['labels']['severity']}"
    return f"| {name} | {notes['summary']} | {notes['description']} | `{expression}`{lasts} |"
