"""The tree of every error that Epochal raises on purpose.

```
EpochalError
├── InvalidInput            an input is wrong; the message says where and what is allowed
│   ├── InvalidConfig       a state.toml or data.toml; carries every mistake at once
│   ├── InvalidDocument     bytes that a peer sent do not form the document that they claim to be
│   ├── NotAllowed          a document names what the machine's owner has not allowed
│   ├── ExtraMissing        something needs a package that is not installed here
│   └── InvalidResult       a result's bytes break a rule (state/results.py)
├── Unsupported             valid, but not supported by this version
├── Refused                 the coordinator refuses a message; the run is unchanged (coordinator, wire)
├── ModelUnavailable        a model's files cannot be read or written now: no answer, or no room on a disk; retry
├── DataError               an error of a data provider (data_providers/protocol.py draws the branches)
├── CoordinatorUnreachable  no answer within the time limit; retry
├── Desync                  a client's step and the run document contradict each other
├── StoreFailed             a journal or blob could not be kept; the coordinator stops accepting
│   ├── OtherRules          the run was kept under other rules than this program's
│   ├── StoreBlocked        nothing was kept now, and the same may be kept later: the disk is full, or the like
│   └── StoreLost           a coordinator that served a run could keep nothing more, and ended
├── StoreConflict           another coordinator of the run appended first; read its records, and handle again
├── SpoolFull               temporary files find no room, or cannot be written or read; it ends
├── TrainerFailed           a trainer could not take its step; reported, the round continues without it
└── InternalError           a bug of Epochal's own
```

Context is in attributes, so that a shell logs it as fields and maps it to a status without parsing text.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from epochal.state.refusals import Refusal
from epochal.state.text.amounts import counted

FailureKind = Literal["unavailable", "corrupt", "out_of_range", "rejected", "trainer", "not_finite"]
"""Why a client could not take a round's step, in its report: a data error's kind, the trainer, or a loss, a gradient or
a parameter that is not finite."""

PUBLIC_ERRORS = frozenset({
    "EpochalError", "InvalidInput", "InvalidConfig", "InvalidDocument", "InvalidResult", "Unsupported", "Refused",
    "DataError", "SourceUnavailable", "CorruptData", "OutOfRange", "Rejected", "CoordinatorUnreachable", "Desync",
    "StoreFailed", "StoreConflict", "TrainerFailed", "InternalError", "RunWentBack",
})  # fmt: skip
"""Errors that `epochal` exports: a traceback shows them by that name."""


class EpochalError(Exception):
    """The root of all errors that Epochal raises on purpose. `context` holds the facts of the message by name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__name__ in PUBLIC_ERRORS and cls.__module__.startswith("epochal."):
            cls.__module__ = "epochal"

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context = context


EpochalError.__module__ = "epochal"


class InvalidInput(EpochalError):
    """An input is wrong; the message names what is allowed. The sender's fault; do not retry the same input."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a file that a person wrote.

    Attributes:
        path: dotted path of the field, as the file spells it; "" for the whole file.
        value: the value in the file, as text; None if it is missing.
        allowed: a phrase that says what would be right.
        nearest: the known key that is most like a misspelt one.
    """

    path: str
    value: str | None
    allowed: str
    nearest: str | None = None

    def __str__(self) -> str:
        found = "is missing" if self.value is None else f"is {self.value}"
        hint = f" (did you mean `{self.nearest}`?)" if self.nearest else ""
        return f"{self.path or '(file)'} {found}; allowed: {self.allowed}{hint}"


class InvalidConfig(InvalidInput):
    """A file that a person wrote is wrong. `mistakes` holds every mistake, not only the first."""

    def __init__(self, source: str, mistakes: tuple[Mistake, ...]) -> None:
        lines = "\n".join(f"  {mistake}" for mistake in mistakes)
        count = len(mistakes)
        super().__init__(f"{source}: {counted(count, 'mistake')}\n{lines}", source=source)
        self.source = source
        self.mistakes = mistakes


class InvalidDocument(InvalidInput):
    """A peer's bytes are not the document that they should be. The peer's fault."""


class NotAllowed(InvalidInput):
    """A document of a run names a host, a file or a package that the owner of this machine has not allowed.

    The owner's to decide; do not retry. The message has the option that would allow it.
    """


class ExtraMissing(InvalidInput):
    """An extra of the package is needed that is not installed here. The message has the line that installs it."""


class InvalidResult(InvalidInput):
    """A client's result breaks a rule of `state/results.py`; `rule` names it. The client's fault."""

    def __init__(self, rule: str, message: str, **context: Any) -> None:
        super().__init__(message, rule=rule, **context)
        self.rule = rule


class Unsupported(EpochalError):
    """A valid file asks for what this version does not support. Carries each place with the line to change.

    Args:
        source: the file, or who asked.
        mistakes: each place, its value and what is allowed there.
        verdict: one sentence on all of them.
    """

    def __init__(self, source: str, mistakes: tuple[Mistake, ...], verdict: str = "not supported yet") -> None:
        lines = "\n".join(f"  {mistake}" for mistake in mistakes)
        super().__init__(f"{source}: {verdict}\n{lines}", source=source)
        self.source = source
        self.mistakes = mistakes


class Refused(EpochalError):
    """The coordinator refused a message; the run is unchanged. `kind` is the reason (`state/refusals.py`)."""

    def __init__(self, kind: Refusal, message: str, **context: Any) -> None:
        super().__init__(message, **context)
        self.kind = kind


class DataError(EpochalError):
    """An error of a data provider: `SourceUnavailable`, `CorruptData`, `OutOfRange` or `Rejected`.

    Every branch sets `kind`, its name on the wire and in a failure report, and `retry`: whether the same request may
    succeed later.
    """

    kind: ClassVar[str]
    retry: ClassVar[bool]


class ModelUnavailable(EpochalError):
    """A model's files could not be read or written now: a Hub or a bucket does not answer, or a disk is full. Retry."""


class CoordinatorUnreachable(EpochalError):
    """The coordinator did not answer in time. Retry."""


class Desync(EpochalError):
    """The run document contradicts the client's step. The client starts again from a checkpoint."""


class StoreFailed(EpochalError):
    """A journal or blob could not be written or read. A coordinator that cannot write stops accepting messages."""


class OtherRules(StoreFailed):
    """A run was kept under other rules than this program's, which does not replay them. The message names the remedy.

    Args:
        where: the part of the run that was read.
        found: the version of the rules under which it was kept.
        known: this program's.
    """

    def __init__(self, where: str, found: int, known: int) -> None:
        advice = (
            "let coordinators of the version that began the run finish it; or export its checkpoint with that version, "
            "and begin another run from it"
            if found < known
            else "start a version of Epochal that is as new as the one that wrote it"
        )
        said = f"{where} was written under rules version {found}; this program replays version {known}"
        super().__init__(f"{said}: {advice}")


class StoreBlocked(StoreFailed):
    """A write kept nothing, and may succeed later: the disk is full, or descriptors or memory ran out.

    Attributes:
        is_full: whether the disk is full; otherwise it is expected to pass within seconds.
        needed_bytes: size of what could not be kept, if it is known.
    """

    def __init__(self, message: str, *, is_full: bool, needed_bytes: int = 0) -> None:
        super().__init__(message)
        self.is_full = is_full
        self.needed_bytes = needed_bytes


class StoreLost(StoreFailed):
    """A coordinator could no longer write to its store, reported it to its readers, and ended."""


class StoreConflict(EpochalError):
    """Another coordinator of the run appended first. Nothing was kept: read its records, and handle again."""


class SpoolFull(EpochalError):
    """A process's temporary files find no room on their disk or within their bound, or cannot be written or read.

    The operator's to mend: the message names the folder and the size. Do not retry.
    """


class TrainerFailed(EpochalError):
    """A trainer could not take its step. The client reports it, and takes part in the next round."""


class InternalError(EpochalError):
    """A bug of Epochal's own. Never raised for what a peer or a user sent."""
