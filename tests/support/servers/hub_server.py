"""A server that speaks as much of the Hugging Face Hub's API as `huggingface_hub` needs of models and datasets."""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest

REPOSITORY = "org/model"
COMMIT = "c" * 40
CONVERTED_COMMIT = "d" * 40
ABOUT_CALLERS = "/api/agent-harnesses"
"""What the library may ask besides, about the programs that call it."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that is wrong: its status; 0 answers nothing. `cut`: only the first bytes of a body are sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


class FakeHub:
    """One repository, and what was asked.

    Attributes:
        kind: of the repository, "models" or "datasets".
        files: the repository's files by name.
        converted: of a dataset, the files at its revision `refs/convert/parquet`; None without it.
        commit: of the main branch.
        token: the token that requests need; None for a public repository.
        wrong: returns the wrong answer to a method and path, or None.
        requests: method and path of each request, but for `ABOUT_CALLERS`.
        commits: summary of each commit, with the names of added and deleted files.
        created: repositories that were created, and whether they are private.
    """

    def __init__(self) -> None:
        self.kind = "models"
        self.files: dict[str, bytes] = {}
        self.converted: dict[str, bytes] | None = None
        self.commit = COMMIT
        self.token: str | None = None
        self.wrong: Callable[[str, str], Wrong | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self.commits: list[dict[str, Any]] = []
        self.created: list[tuple[str, bool]] = []
        self.url = ""
        self.ended = threading.Event()

    def at(self, path: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and files of the revision that a path names; None if there is no such revision."""
        if "refs/convert/parquet" in path or CONVERTED_COMMIT in path:
            return None if self.converted is None else (CONVERTED_COMMIT, self.converted)
        return self.commit, self.files

    def fail_with(self, status: int, times: int = 1000, headers: Mapping[str, str] | None = None) -> None:
        """Answer the next requests with this status."""
        left = [times]

        def wrong(method: str, path: str) -> Wrong | None:
            left[0] -= 1
            return Wrong(status, dict(headers or {})) if left[0] >= 0 else None

        self.wrong = wrong


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> FakeHub:
        return cast("_Server", self.server).hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        hub = self.hub
        if path != ABOUT_CALLERS:
            hub.requests.append((self.command, path))
        wrong = hub.wrong(self.command, path)
        if wrong is not None and wrong.status == 0:
            hub.ended.wait()
            self.close_connection = True
            return
        if wrong is not None and wrong.status != 200:
            self._send(wrong.status, b"", wrong.headers)
        elif hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif f"/{REPOSITORY}/resolve/" in path:
            self._send_file(path, None if wrong is None else wrong.cut)
        else:
            self._answer_api(path, body)

    def _send_file(self, path: str, cut: int | None) -> None:
        commit, files = self.hub.at(path) or (COMMIT, {})
        name = path.partition("/resolve/")[2].partition("/")[2]
        data = files.get(name)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        self._send(200, data, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}, cut)

    def _answer_api(self, path: str, body: bytes) -> None:
        hub = self.hub
        if path == "/api/repos/create":
            asked = json.loads(body)
            is_private = asked.get("private", False) or asked.get("visibility") == "private"
            hub.created.append((f"{asked.get('organization')}/{asked['name']}", is_private))
            self._send_json({"url": f"{hub.url}/{REPOSITORY}"})
        elif path.startswith(f"/api/models/{REPOSITORY}/preupload/"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._send_json({"files": files})
        elif path.startswith(f"/api/models/{REPOSITORY}/commit/"):
            self._commit([json.loads(line) for line in body.splitlines() if line])
        elif path.startswith(f"/api/{hub.kind}/{REPOSITORY}"):
            revision = hub.at(path)
            if revision is None:
                self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
                return
            commit, held = revision
            siblings = [{"rfilename": name, "size": len(data)} for name, data in held.items()]
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in held.items()]
            found = tree if "/tree/" in path else {"id": REPOSITORY, "sha": commit, "siblings": siblings}
            self._send_json(found)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        hub = self.hub
        commit: dict[str, Any] = {"added": [], "deleted": []}
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                commit["summary"] = value["summary"]
            elif line["key"] == "file":
                hub.files[value["path"]] = base64.b64decode(value["content"])
                commit["added"].append(value["path"])
            elif line["key"] == "deletedFile":
                hub.files.pop(value["path"], None)
                commit["deleted"].append(value["path"])
        hub.commits.append(commit)
        self._send_json({"commitUrl": f"{hub.url}/{REPOSITORY}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})

    def _send_json(self, document: object) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: FakeHub


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Yield a hub that is served on this machine."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub = hub = FakeHub()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def point_at(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `huggingface_hub` in this process use the hub and a cache, as its environment would at its import."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
