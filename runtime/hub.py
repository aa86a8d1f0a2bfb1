"""The Hugging Face Hub through `huggingface_hub`, an extra (`epochal[hub]`): its import, and the errors that it raises.

It reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from epochal.runtime.os_errors import Obstacle, obstacle_of
from epochal.runtime.retry import RetryPolicy, retry_after_s
from epochal.state.errors import ExtraMissing, InvalidInput, ModelUnavailable

HUB_HOST = "huggingface.co"
"""The value of `--credentials-for` that lets the token of HF_TOKEN be sent to the Hub, also at HF_ENDPOINT."""
HUB_EXTRA = "pip install 'epochal[hub]'"
HUB_FETCHED_BEFORE = "fetch it before with `hf download`, and set HF_HUB_OFFLINE=1"
MAX_ATTEMPTS = 4
"""Maximum number of attempts at one file while the Hub does not answer."""
MAX_RETRY_AFTER_S = 60.0
"""Longest wait that the Hub may ask for."""
HUB_RETRIES = RetryPolicy(attempts=MAX_ATTEMPTS, first_delay_s=1.0, max_delay_s=10.0, max_asked_s=MAX_RETRY_AFTER_S)
_HTTP_OK_BELOW = 400
_NO_SPACE = "no space left on device"
"""The message of an error of `hf_xet`, which has no number."""


T = TypeVar("T")


def hub() -> Any:
    """Import and return `huggingface_hub`. Raise `InvalidInput`, which names the extra to install, if it is missing."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise ExtraMissing(f"the Hugging Face Hub needs huggingface_hub: {HUB_EXTRA}") from error
    return huggingface_hub


def hub_failures() -> tuple[type[BaseException], ...]:
    """Return the errors that a request to the Hub may raise.

    The HTTP library under `huggingface_hub` differs between its versions; its errors' root is a base of the Hub's own.
    `hf_xet`, through which it moves large files, raises plain `RuntimeError` too.
    """
    errors = hub().errors
    return (
        OSError,
        RuntimeError,
        errors.EntryNotFoundError,
        errors.HFValidationError,
        *errors.HfHubHTTPError.__bases__,
    )


def repeated(request: Callable[[], T], policy: RetryPolicy) -> T:
    """Return the request's answer; make it again, within the policy, while it raises `ModelUnavailable`.

    A disk that is full is not waited for.
    """
    backoff = policy.begin()
    while True:
        try:
            return request()
        except ModelUnavailable as error:
            if error.context.get("is_full"):
                raise
            time.sleep(backoff.next_delay_s(error, error.context.get("asked_s", 0.0)))


def hub_error(error: BaseException, place: str) -> InvalidInput | ModelUnavailable:
    """Return the project's error for one of `hub_failures`.

    Args:
        error: raised by a request.
        place: the repository or file, as `hf://…`.
    """
    errors = hub().errors
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, errors.HFValidationError):
        return InvalidInput(f"{place}: {reason}", place=place)
    if isinstance(error, errors.RevisionNotFoundError):
        return InvalidInput(f"{place}: the repository has no such revision", place=place)
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(error, PermissionError) and error.errno is None:  # hf_xet's, without an answer of the Hub's
        status = 401
    if status >= _HTTP_OK_BELOW:
        return _refusal(error, status, place)
    if _is_of_a_full_disk(error):
        text = f"no room for {place} in the Hub's cache, {hub().constants.HF_HUB_CACHE}: {reason}"
        return ModelUnavailable(f"{text}; free some, or name another place in HF_HOME", place=place, is_full=True)
    return ModelUnavailable(f"{place}: the Hub, {hub().constants.ENDPOINT}, does not answer: {reason}", place=place)


def _is_of_a_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return obstacle_of(error) is Obstacle.FULL
    return isinstance(error, OSError | RuntimeError) and _NO_SPACE in str(error).lower()


def _refusal(error: Any, status: int, place: str) -> InvalidInput | ModelUnavailable:
    """Return the error for an answer of 4xx or 5xx."""
    errors = hub().errors
    if isinstance(error, errors.GatedRepoError):
        message = f"{place}: access to the repository must be granted first, on its page on the Hub (answered {status})"
        return InvalidInput(f"{message}; then set HF_TOKEN to a token of that account", place=place)
    if status in (401, 403):
        which = "needs a token in HF_TOKEN" if status == 401 else "does not allow this token (HF_TOKEN) to do that"
        return InvalidInput(
            f"{place}: the Hub {which}, or there is no such repository (answered {status})", place=place
        )
    if status == 404 or isinstance(error, errors.RepositoryNotFoundError):
        return InvalidInput(f"{place}: there is no such repository (answered {status})", place=place)
    if status == 429:
        asked_s = retry_after_s(error.response.headers.get("Retry-After"), time.time())
        message = f"{place}: too many requests to the Hub (answered 429); try again later"
        return ModelUnavailable(message, place=place, asked_s=asked_s)
    if status >= 500 or status == 408:
        return ModelUnavailable(f"{place}: the Hub fails (answered {status}); try again later", place=place)
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InvalidInput(f"{place}: the Hub refuses the request (answered {status}): {reason}", place=place)
