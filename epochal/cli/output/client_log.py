"""A client's events as log lines."""

import logging
import re
from dataclasses import asdict
from typing import Any

from epochal.coordinator_client.session import Joined
from epochal.run_manager.events import BlobFetched, DocumentArrived, Event, OutcomeMerged, PartBegan, StepEntered
from epochal.runtime.http.redacted_urls import without_password

log = logging.getLogger(__name__)

QUIET = (DocumentArrived, StepEntered, PartBegan, BlobFetched, OutcomeMerged)
"""Events that occur often, or that repeat what other events say."""


def member_page(url: str, client_id: str) -> str:
    """Return the address of a client's own page at the coordinator with this URL, which may name a run."""
    return f"{without_password(url.partition('/v1/')[0]).rstrip('/')}/#/member/{client_id}"


def log_event(event: Event, url: str | None = None) -> None:
    """Write one log line for an event; the `QUIET` ones only with `--verbose`.

    Args:
        event: of a client.
        url: the coordinator's; the line of a join then names the client's page there.
    """
    level = logging.DEBUG if isinstance(event, QUIET) else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields: dict[str, Any] = asdict(event)
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    if isinstance(event, DocumentArrived | StepEntered):
        document = event.document
        fields = {"version": document.version, "phase": document.run_state.value, "run_step": document.step}
        if isinstance(event, StepEntered):
            fields["step_name"] = event.step_name
    if isinstance(event, Joined) and url is not None:
        fields["page"] = member_page(url, event.client_id)
    if "message" in fields:
        fields["detail"] = fields.pop("message")
    log.log(level, name, extra=fields)
