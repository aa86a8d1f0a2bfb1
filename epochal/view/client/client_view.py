"""A client's own view: a panel at the bottom of its terminal, with its log lines above.

The rule kept here: the view draws what `ClientProgress` holds a few times in a second, in a separate thread, so that
neither a slow terminal nor a burst of events holds up training.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from epochal.cli.output import logs
from epochal.cli.output.bars import shown_duration, terminal, work_line
from epochal.cli.output.client_log import member_page
from epochal.run_manager.events import Event
from epochal.runtime.long_work import LongWork, shown_on
from epochal.runtime.visible_text import visible
from epochal.state.shown.glossary import PARTS, PHASES
from epochal.view.client.client_progress import ClientProgress, Traffic
from epochal.view.status_panel import curve

REFRESH_PER_S = 2.0
CURVE_CHARS = 24
MAX_WAITING_LINES = 256
"""Number of log lines that wait for the next refresh; one more is printed at once, with them."""
JOIN_S = 1.0
"""Time for the drawing thread to end, on a terminal that has stopped taking output."""
SHOWN_WAIT_S = 0.05
"""A wait that is shorter is not named."""


class ClientView:
    """Shows a client's progress. `observe` is an `Observer`, and it is a display of long work.

    Args:
        console: a terminal.
        url: the coordinator's, which has a page of this client; "" names none.
        now_s: returns seconds on a monotonic clock.
    """

    def __init__(self, console: Console, url: str = "", now_s: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._url = url
        self._now_s = now_s
        self._progress = ClientProgress(activity_since_s=now_s())
        self._works: dict[LongWork, None] = {}
        self._lines: list[str] = []
        self._printing = threading.Lock()
        self._is_over = threading.Event()

    def observe(self, event: Event) -> None:
        """Take an event of the client."""
        self._progress.observe(event, self._now_s())

    def show(self, work: LongWork) -> None:
        """Show how far long work has come."""
        self._works[work] = None

    def forget(self, work: LongWork) -> None:
        """Show long work no longer."""
        self._works.pop(work, None)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the view while the context is entered; leave the log lines alone on the terminal."""
        live = Live(
            console=self._console,
            get_renderable=self.render,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=True,
        )
        drawing = threading.Thread(target=self._draw, args=(live,), name="epochal-view", daemon=True)
        with live, logs.lines_above(self._take), shown_on(self):
            drawing.start()
            try:
                yield
            finally:
                self._is_over.set()
                drawing.join(JOIN_S)
                self._print_lines()

    def _draw(self, live: Live) -> None:
        while not self._is_over.wait(1 / REFRESH_PER_S):
            self._print_lines()
            live.refresh()

    def _take(self, line: str, is_urgent: bool) -> None:
        """Take a log line, which is printed with the next refresh, or at once."""
        self._lines.append(line)
        if is_urgent or len(self._lines) >= MAX_WAITING_LINES:
            self._print_lines()

    def _print_lines(self) -> None:
        with self._printing:
            lines, self._lines = self._lines, []
            if lines:
                self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """Return the view as it is now."""
        return client_panel(self._progress, tuple(self._works), self._now_s(), self._url)


def open_view(url: str) -> ClientView:
    """Return a view on standard error, which is a terminal, of a client of the coordinator with this URL."""
    return ClientView(terminal(sys.stderr), url)


def client_panel(progress: ClientProgress, works: tuple[LongWork, ...], now_s: float, url: str = "") -> RenderableType:
    """Return a client's progress as a panel.

    Args:
        progress: of the client.
        works: its long work under way.
        now_s: on the clock of the progress.
        url: the coordinator's; "" names no page.
    """
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, text in _rows(progress, now_s):
        rows.add_row(name, text)
    if url and progress.client_id:
        rows.add_row("page", Text(member_page(url, progress.client_id)))
    parts: list[RenderableType] = [rows]
    if progress.problem:
        parts.append(Text(visible(progress.problem), style="bold yellow"))
    parts += [work_line(work, now_s) for work in works]
    document = progress.document
    run = "" if document is None else f" · run {visible(document.run_id)}"
    who = f" · client {progress.client_id[:12]}" if progress.client_id else ""
    return Panel(Group(*parts), title=Text(f"Epochal{run}{who}"), subtitle=Text("Ctrl-C finishes the round and leaves"))


def _rows(progress: ClientProgress, now_s: float) -> Iterator[tuple[str, Text]]:
    """Yield the names of the rows, and their texts."""
    document, trained, work = progress.document, progress.trained, progress.work
    doing = Text(visible(progress.activity), style="bold")
    doing.append(f", for {shown_duration(now_s - progress.activity_since_s)}", style="not bold")
    if progress.activity == PARTS["train"].label and trained is not None:
        doing.append(f" (the last round took {trained.train_s:.1f} s)", style="not bold")
    yield "now", doing
    if document is not None:
        place = f"{document.run_state.value}: {PHASES[document.run_state]}"
        step = min(document.step, document.total_steps)
        yield "run", Text(f"step {step} of {document.total_steps}, epoch {document.epoch}. {place}")
    if work is not None:
        yield "round", _round(progress)
    if trained is not None:
        yield "speed", _speed(progress)
        yield "waits", _waits(progress)
    yield "results", Text(f"{progress.applied} applied, {progress.lost} lost, {progress.failed} failed")
    yield "traffic", Text(f"sent {_traffic(progress.sent)}, received {_traffic(progress.received)}")


def _round(progress: ClientProgress) -> Text:
    work = progress.work
    assert work is not None, "there is work"
    others = f"one of {work.client_count} clients" if work.client_count > 1 else "the only client"
    text = f"{work.batch_count} of {work.round_batches} batches, {others}"
    if not work.batch_count:
        text = f"none of {work.round_batches} batches; others train"
    text += ", elected witness" if work.is_witness else ""
    attested = progress.attested
    if attested is not None and (attested.step, attested.attempt) == (work.step, work.attempt):
        text += f"; attested {attested.received_count} of {attested.known_count} results"
    return Text(f"step {work.step}: {text}")


def _speed(progress: ClientProgress) -> Text:
    trained = progress.trained
    assert trained is not None, "a round was trained"
    shown = Text(
        f"{trained.token_count / trained.train_s if trained.train_s > 0 else 0.0:,.0f} tokens/s while training"
    )
    overall = progress.tokens_per_s()
    if overall is not None:
        shown.append(f", {overall:,.0f} with all waits")
    if trained.loss is not None:
        shown.append(f"; loss {trained.loss:.3f} ")
        shown.append(curve(list(progress.losses), CURVE_CHARS), style="green")
    return shown


def _waits(progress: ClientProgress) -> Text:
    """Return for what the client waited in its last round."""
    trained = progress.trained
    assert trained is not None, "a round was trained"
    causes = (("fetching", trained.fetching_s), ("decoding", trained.decoding_s), ("packing", trained.packing_s))
    why = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in causes if seconds >= SHOWN_WAIT_S)
    text = f"data {trained.data_wait_s:.1f} s" + (f" ({why})" if why else "")
    if trained.upload_s:
        text += f", upload {trained.upload_s:.1f} s"
    if progress.merge_s is not None:
        text += f", merge {progress.merge_s:.1f} s"
    if trained.idle_s is not None:
        text += f", others {trained.idle_s:.1f} s"
    if progress.repeated:
        text += f"; {progress.repeated} requests were repeated"
    return Text(text)


def _traffic(traffic: Traffic) -> str:
    rate = f" at {decimal(round(traffic.bytes_per_s))}/s" if traffic.bytes_per_s else ""
    return f"{decimal(traffic.size_bytes)}{rate}"
