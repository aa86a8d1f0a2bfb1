"""One page with a whole run: a file of HTML that needs no network, no script and no other file.

Names and reasons come from machines that nobody has checked: every text is escaped, and the page's own policy lets a
browser carry out nothing, load nothing and send nothing (Content Security Policy 3, `default-src 'none'`).
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import tomli_w

from epochal import __version__
from epochal.coordinator.proof.audit import AuditReport
from epochal.runtime.files.durable_files import replace_file
from epochal.runtime.glossary import CHECKS
from epochal.state.errors import InvalidInput
from epochal.state.messages.evaluation_reports import benchmarks_among, losses_among, newest_evaluations
from epochal.state.messages.history_rows import kept
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.shown.tries import shown_progress
from epochal.state.text.amounts import counted
from epochal.state.text.html_tables import rows_html, text_html
from epochal.state.text.visible import visible
from epochal.view.figures.charts import charts_of
from epochal.view.figures.plots import figure_html, has_matplotlib
from epochal.view.figures.run_record import RunRecord
from epochal.view.status_panel import gpu_words

REPORT_NAME = "report.html"
"""Name of the file that `epochal up` and `epochal report` write."""
MAX_MEMBERS = 500
"""Maximum number of members in the page, those with most tokens; the page shows the total."""
MAX_CONFIG_CHARS = 200_000
NO_CHARTS = "The charts are missing, because they need matplotlib: <code>pip install 'epochal[plot]'</code>"
MB = 1_000_000
STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}
h1,h2{line-height:1.2}
figure{margin:1.5rem 0}
figcaption,.quiet{opacity:.75;font-size:.9rem}
img{width:100%;height:auto;background:#fff}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;overflow-wrap:normal}
th,td{text-align:left;padding:.2rem .7rem .2rem 0}
tr{border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}
td.number,th.number{text-align:right}
pre{overflow-x:auto;font-size:.85rem;border:1px solid color-mix(in srgb,currentColor 30%,transparent);padding:.7rem}
.said{font-size:1.1rem;border-left:4px solid #0072b2;padding-left:.8rem}
.noted{border-left:4px solid #e69f00;padding-left:.8rem}
td:last-child{overflow-wrap:anywhere}
.meant td:nth-child(2){overflow-wrap:anywhere;min-width:12rem}
.meant td:last-child{min-width:16rem}
.wrong{border-left:4px solid #d55e00;padding-left:.8rem}
"""
_MEMBER_COLUMNS = (
    "client", "name", "version", "trainer", "now", "results applied", "lost", "tokens", "tokens/s", "loss",
    "waited for data [s]", "results [MB]", "GPU",
)  # fmt: skip
_TEXT_COLUMNS = 5


def write_report(record: RunRecord, path: Path) -> None:
    """Write a run's page, as one file that is there whole or not at all.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        replace_file(path, report_html(record).encode())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error


def report_html(record: RunRecord) -> str:
    """Return a run's page. The same record gives the same page."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    title = f"Run {text_html(record.run_id)}"
    body = "\n".join(_body(record))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">"
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _body(record: RunRecord) -> Iterator[str]:
    yield f'<p class="quiet">As of {_when(record.at_s)}. Epochal {text_html(__version__)}.</p>'
    yield f'<p class="said">{text_html(record.explanation.sentence)}</p>'
    yield "<h2>The run</h2>" + _table(_summary(record))
    if has_matplotlib():
        yield from map(figure_html, charts_of(record))
    else:
        yield f'<p class="noted">{NO_CHARTS}</p>'
    yield from _audit(record.audit)
    yield from _members(record)
    yield "<h2>Configuration</h2><p class=quiet>As clients read it: without access and notices.</p>"
    yield f"<pre>{escape(_config(record.config))}</pre>"


def _summary(record: RunRecord) -> Iterator[tuple[str, str]]:
    rows = record.rows
    yield "phase", record.phase
    yield "progress", f"{shown_progress(record.step, record.total_steps)}, epoch {record.epoch:,}"
    yield "rounds that have ended", f"{rows[-1].next_number:,}" if rows else "0"
    if record.rewound:
        yield "rewinds", f"{record.rewound}; {sum(row.dropped_rounds for row in rows):,} rounds taken back"
    yield "tokens applied", f"{record.tokens:,}"
    rows = tuple(kept(rows))
    if rows:
        applied = sum(row.applied_batches for row in rows)
        waiting, quarantined = rows[-1].carried_batches, rows[-1].quarantined_batches
        yield "data", f"{counted(applied, 'batch', 'batches')} applied, {waiting:,} wait, {quarantined:,} quarantined"
    losses = [row.loss for row in rows if row.loss is not None]
    if losses:
        yield "training loss", f"{losses[0]:.4f} at first, {losses[-1]:.4f} now (nats/token)"
    norm = next((row.gradient_norm for row in reversed(rows) if row.gradient_norm is not None), None)
    if norm is not None:
        yield "gradient norm", f"{norm:.4g}"
    for found in newest_evaluations(losses_among(record.evaluations)):
        yield f"evaluated: {found.name}", f"{found.value:.4f} nats/token, replica {found.step}, {found.tokens:,} tokens"
    for found in newest_evaluations(benchmarks_among(record.evaluations)):
        yield f"benchmark: {found.title}", f"{found.shown_value}, replica {found.step}, {found.samples:,} samples"
    yield "members", f"{len(record.members):,}, of which {sum(one.ready for one in record.members):,} are ready"
    if rows:
        yield "time", f"{_when(rows[0].started_s)} to {_when(rows[-1].ended_s)}"
    yield "lineage", record.lineage


def _audit(audit: AuditReport | None) -> Iterator[str]:
    yield "<h2>Audit</h2>"
    if audit is None:
        yield "<p>Not audited: that takes the run's store; see <code>epochal audit</code>.</p>"
        return
    fields = asdict(audit)
    problems, remarks = fields.pop("problems"), fields.pop("remarks")
    verdict = "Some checks failed." if problems else "All checks passed."
    yield f'<p class="{"wrong" if problems else "said"}">{verdict}</p>'
    for text in problems:
        yield f'<p class="wrong">{text_html(text)}</p>'
    for text in remarks:
        yield f'<p class="noted">{text_html(text)}</p>'
    rows = (
        (name.replace("_", " "), _value(value), CHECKS.get(name, ""))
        for name, value in fields.items()
        if value is not None
    )
    yield f'<div class="meant">{rows_html(("figure", "value", "meaning"), rows, text_columns=3)}</div>'


def _members(record: RunRecord) -> Iterator[str]:
    everybody = [*record.members, *record.gone]
    shown = sorted(everybody, key=lambda one: (-one.tokens, one.client_id))[:MAX_MEMBERS]
    most = f"; the {len(shown)} with most tokens" if len(shown) < len(everybody) else ""
    yield (
        f"<h2>Members</h2><p>{counted(len(record.members), 'member')}, and {len(record.gone):,} that left{most}."
        " Names, versions and trainers are clients' own words.</p>"
    )
    yield rows_html(_MEMBER_COLUMNS, map(_member, shown), text_columns=_TEXT_COLUMNS)


def _member(one: MemberFigures) -> Sequence[str]:
    state = f"left: {one.left}" if one.left else "ready" if one.ready else "not ready"
    return (
        one.client_id[:12],
        one.name,
        one.software,
        one.trainer,
        state,
        f"{one.applied:,}",
        f"{one.lost:,}",
        f"{one.tokens:,}",
        "" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}",
        "" if one.last_loss is None else f"{one.last_loss:.4g}",
        f"{one.data_wait_s:.1f}",
        f"{one.result_bytes / MB:,.2f}",
        gpu_words(one),
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th scope=row>{text_html(name)}</th><td>{text_html(value)}</td></tr>" for name, value in rows)
    return f"<div class=wide><table>{lines}</table></div>"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _config(config: dict[str, Any]) -> str:
    text = tomli_w.dumps(_without_none(config))
    shown = "\n".join(visible(line) for line in text.split("\n"))
    return shown if len(shown) <= MAX_CONFIG_CHARS else f"{shown[:MAX_CONFIG_CHARS]}\n…"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value if item is not None]
    return value


def _when(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
