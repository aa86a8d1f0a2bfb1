"""An HTTP server that takes notices, and answers as a test wants."""

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.support.bounds import BOUND_S

HANG = 0
"""Instead of a status: do not answer until the server ends."""


@dataclass(frozen=True, slots=True)
class Told:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class WebhookServer:
    """What was told, and how it is answered.

    Attributes:
        url: of the server, without a path.
        statuses: of the next answers; 200 when there are none.
        headers: of every answer.
        told: the requests, in their order.
    """

    def __init__(self) -> None:
        self.url = ""
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        self.answer = b"ok"
        self.told: queue.Queue[Told] = queue.Queue()
        self.ended = threading.Event()

    def next(self) -> Told:
        """Return the next request; wait for it."""
        return self.told.get(timeout=BOUND_S)

    def take(self, told: Told) -> int:
        """Note a request; return the status of its answer."""
        status = self.statuses.pop(0) if self.statuses else 200
        self.told.put(told)
        return status


@contextlib.contextmanager
def webhook_server() -> Iterator[WebhookServer]:
    """Serve on loopback until the context is left."""
    webhooks = WebhookServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = webhooks.take(Told(self.path, httpx.Headers(self.headers.items()), body))
            if status == HANG:
                webhooks.ended.wait()
                return
            self.send_response(status)
            for name, value in webhooks.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(webhooks.answer)))
            self.end_headers()
            self.wfile.write(webhooks.answer)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        webhooks.url = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield webhooks
        finally:
            webhooks.ended.set()
            server.shutdown()
            serving.join()
