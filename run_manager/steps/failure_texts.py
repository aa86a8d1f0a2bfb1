"""The texts of failures that a client reports to its coordinator.

The rule kept here: they name the kind of a failure and its place in the run's own terms. The answer of a host, its
address, the content of a file and paths of this machine stay in the client's own log: otherwise a coordinator could
explore the network and the files of a volunteer by naming them as data.
"""

import re
from typing import Any
from urllib.parse import urlsplit

from epochal.data_providers.fetcher import failure_kind
from epochal.state.errors import DataError, TrainerFailed

TEXTS = {
    "unavailable": "a source of the data does not answer, or not in time",
    "corrupt": "the data are damaged, or other data than the run's",
    "out_of_range": "the data have no such index",
    "rejected": "a source of the data refuses the request",
}
MAX_NAME_CHARS = 128
_PLACES = re.compile(r"[a-z][a-z0-9+.-]*://\S+|(?<![\w.])/[^\s:;,'\"]+")
"""URLs, and paths from the root."""


def reported_failure(failure: DataError | TrainerFailed) -> str:
    """Return the text of a failure for the coordinator."""
    if isinstance(failure, TrainerFailed):
        return _PLACES.sub("…", failure.message)
    text, context = TEXTS[failure_kind(failure)], failure.context
    if "vocabulary" in context:
        text = f"a token or label is above {int(context['vocabulary']) - 1}, the model's largest"
    places = [f"data index {context['data_index']}"] if "data_index" in context else []
    if name := _file_name(context):
        places.append(f"file {name}")
    return ": ".join(filter(None, (", ".join(places), text)))


def _file_name(context: dict[str, Any]) -> str:
    """Return the name of a remote file, as the run's location has it; "" of one on this machine."""
    place = str(context.get("url") or context.get("place") or "")
    return urlsplit(place).path.rpartition("/")[2][:MAX_NAME_CHARS] if "://" in place else ""
