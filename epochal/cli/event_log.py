"""A client's events as log lines."""

import logging
import re
from dataclasses import asdict
from typing import Any

from coordinator_client.session import RequestRepeated, RestBegan
from run_manager.events import (
    BlobFetched,
    BlobSent,
    DataDiffers,
    DocumentArrived,
    Event,
    OutcomeMerged,
    ResultSettled,
    StepEntered,
)

log = logging.getLogger(__name__)

QUIET = (DocumentArrived, StepEntered, ResultSettled, BlobSent, BlobFetched, OutcomeMerged, RequestRepeated, RestBegan)
"""Events that occur often, or that repeat what other events say."""

LOUD = (DataDiffers,)
"""Events that somebody has to act on."""


def log_event(event: Event) -> None:
    """Write one log line for an event; the `QUIET` ones only with `--verbose`."""
    fields: dict[str, Any] = asdict(event)
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    if isinstance(event, DocumentArrived | StepEntered):
        document = event.document
        fields = {"version": document.version, "phase": document.run_state.value, "run_step": document.step}
        if isinstance(event, StepEntered):
            fields["step_name"] = event.step_name
    if "message" in fields:
        fields["detail"] = fields.pop("message")
    loud = logging.WARNING if isinstance(event, LOUD) else logging.INFO
    log.log(logging.DEBUG if isinstance(event, QUIET) else loud, name, extra=fields)
