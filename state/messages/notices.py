"""Notices: events of a run for which somebody asked to be notified (`[notify]`)."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.config.notify_table import MAX_WEBHOOKS, NoticeKind
from epochal.state.wire_document import WireDocument

MAX_NOTICE_CHARS = 500
MAX_SUBJECT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Notice(WireDocument):
    """The newest notice of its kind.

    Attributes:
        subject: of a single event, such as a checkpoint's step; the same one is not reported again. "" for a lasting
            condition, which is reported again in each period.
        raised_s: when it was raised, in seconds since 1970 on the coordinator's clock.
        settled: names of the webhooks that have it, or do not take it.
    """

    kind: NoticeKind
    subject: Annotated[str, Field(max_length=MAX_SUBJECT_CHARS)]
    message: Annotated[str, Field(max_length=MAX_NOTICE_CHARS)]
    raised_s: float
    settled: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_SUBJECT_CHARS)], ...], Field(max_length=MAX_WEBHOOKS)
    ] = ()
