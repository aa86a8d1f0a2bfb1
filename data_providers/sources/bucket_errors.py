"""The errors of a bucket of data, from those of obstore.

obstore does not have an error type for every refusal (of a listing, say): the HTTP status is read from the message.
"""

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.runtime.buckets import obstore, status_of

_TRANSIENT_STATUSES = (408, 425, 429)
_PERMANENT = ("non-partial response when range requested", "incorrectly configured region")


def request_error(error: Exception, place: str) -> SourceUnavailable | Rejected | CorruptData:
    """Return the project's error for one of `store_failures`.

    Args:
        error: raised by a request.
        place: the object's or folder's URL.
    """
    exceptions = obstore().exceptions
    reason = str(error).partition("\n")[0]
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return Rejected(f"{place} does not exist: {reason}", place=place)
    status = status_of(error)
    refused = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
    if isinstance(error, refused) or status in (401, 403):
        return Rejected(f"{place} is refused to this machine: {reason}", place=place)
    if status == 416:
        return CorruptData(f"{place} changed: it is shorter than it was listed: {reason}", place=place)
    if 400 <= status < 500 and status not in _TRANSIENT_STATUSES:
        return Rejected(f"{place} does not exist, or cannot be read like this: {reason}", place=place)
    is_permanent = isinstance(error, exceptions.InvalidPathError | exceptions.NotSupportedError)
    if is_permanent or any(part in reason for part in _PERMANENT):
        return Rejected(f"{place} cannot be requested: {reason}", place=place)
    return SourceUnavailable(f"{place} cannot be read: {reason}", place=place)
