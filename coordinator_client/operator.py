"""What an operator's commands send the coordinator: a few plain requests over httpx."""

import re
import ssl
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from state.errors import CoordinatorUnreachable, InvalidInput, Refused
from state.messages import RunStatus
from state.refusals import Refusal
from state.wire import parse_document

REQUEST_TIMEOUT_S = 10.0
MAX_PORT = 65535
_RUNS = "/v1/runs"
_CLIENT_ID_DIGITS = 32
_CLIENT_ID = re.compile(rf"[0-9a-f]{{4,{_CLIENT_ID_DIGITS}}}")


class OperatorClient:
    """A coordinator as its operator sees it.

    Args:
        url: the coordinator's base URL, or that of a run (`…/v1/runs/RUN_ID`).
        admin_token: for what only an operator may do.
        tls_ca: a file with the certificate authorities to trust; None for the usual ones.

    Raises:
        InvalidInput: the URL, the token or the file is none.
    """

    def __init__(self, url: str, admin_token: str | None = None, tls_ca: Path | None = None) -> None:
        base, _, run_id = url.rstrip("/").partition(f"{_RUNS}/")
        base = base.removesuffix(_RUNS)
        if not base.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r} is no URL of a coordinator; it begins with http:// or https://")
        if admin_token is not None and not (admin_token.isascii() and admin_token.isprintable()):
            raise InvalidInput("this is no admin token: the coordinator's have letters, digits, - and _")
        headers = {} if admin_token is None else {"Authorization": f"Bearer {admin_token}"}
        try:
            verify = True if tls_ca is None else ssl.create_default_context(cafile=tls_ca)
            if (httpx.URL(base).port or 0) > MAX_PORT:
                raise InvalidInput(f"{url!r} is no URL of a coordinator; ports end at {MAX_PORT}")
            self._http = httpx.Client(base_url=base, headers=headers, timeout=REQUEST_TIMEOUT_S, verify=verify)
        except (httpx.InvalidURL, OSError) as error:  # ssl.SSLError is an OSError
            raise InvalidInput(f"{tls_ca or url}: {error}") from error
        self._url = base
        self._run_id = run_id or None

    def __enter__(self) -> "OperatorClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @property
    def run_id(self) -> str:
        """The run that the coordinator serves."""
        if self._run_id is None:
            answer = _json_object(self._request("GET", _RUNS))
            runs = answer.get("runs")
            if not isinstance(runs, list) or not all(isinstance(run_id, str) for run_id in runs):
                raise InvalidInput(f"{self._url} does not answer as a coordinator does; is it one?")
            if len(runs) != 1:
                raise InvalidInput(f"{self._url} serves {len(runs)} runs ({', '.join(runs)}); name one in the URL")
            self._run_id = str(runs[0])
        return self._run_id

    def status_json(self) -> bytes:
        """The run's status as the coordinator's JSON."""
        return self._request("GET", f"{_RUNS}/{self.run_id}/status").content

    def status(self) -> RunStatus:
        """The run's status."""
        return parse_document(RunStatus, self.status_json())

    def pause(self) -> None:
        """Ask the run to hold after this round."""
        self._request("POST", f"{_RUNS}/{self.run_id}/pause")

    def resume(self) -> None:
        """Let the run go on."""
        self._request("POST", f"{_RUNS}/{self.run_id}/resume")

    def eject(self, client_id: str) -> str:
        """Remove a client; the answer is its whole id.

        Args:
            client_id: the id, or a beginning of it that no other member's has.

        Raises:
            InvalidInput: it is no such thing.
        """
        if not _CLIENT_ID.fullmatch(client_id):
            raise InvalidInput(f"{client_id!r} is no client id; allowed: 4 to 32 hex digits, as `status` shows them")
        if len(client_id) < _CLIENT_ID_DIGITS:
            members = [member.client_id for member in self.status().members]
            found = [member for member in members if member.startswith(client_id)]
            if len(found) != 1:
                raise InvalidInput(f"{len(found) or 'no'} members have an id that begins with {client_id}")
            client_id = found[0]
        self._request("POST", f"{_RUNS}/{self.run_id}/clients/{client_id}/eject")
        return client_id

    def _request(self, method: str, path: str) -> httpx.Response:
        try:
            response = self._http.request(method, path)
        except httpx.HTTPError as error:
            raise CoordinatorUnreachable(f"{self._url} does not answer: {error}") from error
        if response.is_success:
            return response
        raise _refused(response)


def _json_object(response: httpx.Response) -> dict[str, Any]:
    """The answer's object; empty for an answer that holds none."""
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _refused(response: httpx.Response) -> Refused:
    is_problem = response.headers.get("content-type", "").startswith("application/problem+json")
    problem = _json_object(response) if is_problem else {}
    kind = str(problem.get("type", "unknown")).rpartition(":")[2]
    return Refused(Refusal.of(kind), str(problem.get("detail") or f"the coordinator answered {response.status_code}"))
