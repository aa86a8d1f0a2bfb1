"""Log lines for people at a terminal: sentences, one of rounds at most every `ROUND_LINE_S`, and no repetitions.

The rules kept here: a warning always passes; a round that failed always passes; files, JSON and `--verbose` have every
line.
"""

import logging
import re
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

from epochal.state.phase_names import ROUND_PHASES
from epochal.state.text.amounts import counted

ROUND_LINE_S = 10.0
DIGEST_CHARS = 12
"""Number of characters that are shown of a digest or a key."""
MANY = 10_000
"""Numbers from here on are shown whole, without a fraction."""
_DIGEST = re.compile(r"(?<!/)\b[0-9a-f]{32,128}")
_ROUND_PHASES = frozenset(phase.value for phase in ROUND_PHASES)


def short(value: Any) -> str:
    """Return a field for people: four digits of a fraction, and the beginning of a digest; an address is whole."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= MANY else f"{value:.4g}"
    return _DIGEST.sub(lambda found: f"{found[0][:DIGEST_CHARS]}…", str(value))


def _trained(fields: Mapping[str, Any]) -> str:
    loss = "" if fields.get("loss") is None else f"loss {fields['loss']:.4g}, "
    train_s = fields.get("train_s") or 0.0
    speed = f"{fields['token_count'] / train_s:,.0f} tokens/s" if train_s else f"{fields['token_count']:,} tokens"
    return f"{_round_of(fields)}: {loss}{speed}, {fields['uploaded_bytes'] / 1e6:.4g} MB sent"


def _decided(fields: Mapping[str, Any]) -> str:
    if _failed(fields):
        return f"{_round_of(fields)}: nothing is applied: {fields['reason']}"
    return f"{_round_of(fields)}: {counted(fields['applied_results'], 'result')} applied"


def _round_of(fields: Mapping[str, Any]) -> str:
    again = fields["attempt"]
    return f"step {fields['step']}" + (f", after {counted(again, 'failed try', 'failed tries')}" if again else "")


def _acted(fields: Mapping[str, Any]) -> str:
    given = fields["with"]
    if fields["action"] == "genesis":
        return f"the run starts from the model of step {given['step']}"
    shown = ", ".join(f"{name} {short(value)}" for name, value in given.items())
    return f"the operator: {fields['action']}{f' ({shown})' if shown else ''}"


_Sentence = Callable[[Mapping[str, Any]], str]
_OF_ROUNDS: Mapping[str, _Sentence] = {"round_trained": _trained, "outcome_decided": _decided}
"""What is said of a round by a client, and by a coordinator."""
_SENTENCES: Mapping[str, _Sentence] = {
    **_OF_ROUNDS,
    "operator_acted": _acted,
    "phase_changed": lambda fields: f"{fields['before']} → {fields['after']}: {fields['reason']}",
    "dataset opened": lambda fields: (
        f"data: {counted(fields['sequences'], 'sample')} in {counted(fields['files'], 'file')}"
    ),
    "coordinator_pinned": lambda fields: f"the coordinator's key is kept in {fields['file']}",
    "trainer_opened": lambda fields: f"the trainer is open, after {short(fields['opening_s'])} s",
    "replica_held": lambda fields: f"holds the model of step {fields['step']}",
    "became_ready": lambda fields: f"ready with the model of step {fields['step']}",
    "waits": lambda fields: f"waits for {fields['for']}",
    "takes_no_part_for_now": lambda fields: f"takes no part for now: {fields['reason']}",
    "takes_part_again": lambda _: "takes part again",
}
_SAID_OTHERWISE = frozenset(
    {"attested", "first_checkpoint_made", "data server listens", "blobs_swept", "recorded_blobs_swept"}
)
"""Lines that come with every few rounds, or that repeat what the program prints."""


def sentence_of(record: logging.LogRecord) -> str | None:
    """Return the sentence that stands for a line, or None where the line is shown as it is."""
    found = _SENTENCES.get(record.getMessage())
    return None if found is None or record.levelno > logging.INFO else found(vars(record))


def _failed(fields: Mapping[str, Any]) -> bool:
    return fields.get("applied_results") == 0


def _repeats(name: str, fields: Mapping[str, Any]) -> bool:
    """Whether a line comes with every round that goes as it should, or says again what was said."""
    if name == "phase_changed":
        return fields.get("before") in _ROUND_PHASES and fields.get("after") in _ROUND_PHASES
    return name in _SAID_OTHERWISE or (name == "replica_held" and fields.get("origin") == "outcome")


class ForPeople(logging.Filter):
    """Lets pass what a person at a terminal wants to read.

    Args:
        now_s: seconds on a clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._next_round_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        name, fields = record.getMessage(), vars(record)
        if record.levelno > logging.INFO:
            return True
        if name not in _OF_ROUNDS or _failed(fields):
            return not (record.name.startswith("uvicorn") or _repeats(name, fields))
        now_s = self._now_s()
        if now_s < self._next_round_s:
            return False
        self._next_round_s = now_s + ROUND_LINE_S
        return True


def first_start_box(run_id: str, url: str, admin_token: str, *, invites: bool = False, tls_ca: str = "") -> str:
    """Return what the operator of a new run needs from its first start.

    Args:
        run_id: of the run.
        url: where others reach the coordinator.
        admin_token: the operator's.
        invites: whether members need an invitation, with which their command is printed.
        tls_ca: the coordinator's certificate if only those trust it who have it; "" if everybody does.
    """
    reached = f"{url} --tls-ca {shlex.quote(tls_ca)}" if tls_ca else url
    joins = f"invite {reached} (prints their command)" if invites else f"client {reached}"
    lines = (
        f"Run {run_id} has started. Keep what follows: the token is shown this once.",
        "",
        f"for members    epochal {joins}",
        f"page           {url}/",
        f"admin token    {admin_token}",
        "               lets its owner pause, invite, eject, export: whoever has it is the operator",
        f"next           export EPOCHAL_ADMIN_TOKEN={admin_token}",
        f"               epochal status {reached}",
    )
    width = max(map(len, lines))
    edge = "─" * (width + 2)
    return "\n".join((f"╭{edge}╮", *(f"│ {line:{width}} │" for line in lines), f"╰{edge}╯"))
