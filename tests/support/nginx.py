"""A real nginx on loopback, serving a folder in good and bad ways; it ends with its context."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.bounds import BOUND_S
from tests.support.heavy import need_program
from tests.support.ports import free_port

CONFIG = """
{user}
daemon off;
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 256; }}
http {{
    log_format ranges '$uri "$http_range" $status $body_bytes_sent';
    access_log {prefix}/access.log ranges;
    log_format protocols '$uri $server_protocol $connection';
    access_log {prefix}/protocols.log protocols;
    client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy; fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi; scgi_temp_path {prefix}/scgi;
    server {{
        listen 127.0.0.1:{port}{tls}
        location /data/ {{ alias {root}/; {limits} }}
        location /whole/ {{ alias {root}/; max_ranges 0; }}
        location /slow/ {{ alias {root}/; limit_rate 64k; }}
        location /denied/ {{ return 403; }}
        location /broken/ {{ return 500; }}
        location /moved/ {{ rewrite ^/moved/(.*)$ /data/$1 redirect; }}
        location /around/ {{ rewrite ^ /around/again redirect; }}
    }}
}}
"""

BALANCER = """
{user}
daemon off;
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 0;
    proxy_request_buffering off;
    client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy; fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi; scgi_temp_path {prefix}/scgi;
    upstream coordinators {{ {servers} }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://coordinators;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_connect_timeout 1s;
            proxy_next_upstream error timeout http_503;
        }}
    }}
}}
"""


@dataclass
class Nginx:
    """One server. `requests` are the ranges that it was asked for, as its own log has them."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def requests(self) -> list[str]:
        """All that were answered so far. A line may be written later than its answer, so one more is asked for, and
        waited for in the log, which one process writes in order."""
        marker = f"/denied/marker-{time.monotonic_ns()}"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(self.url + marker, timeout=BOUND_S).close()
        deadline_s = time.monotonic() + BOUND_S
        while time.monotonic() < deadline_s:
            lines = self.log_path.read_text().splitlines()
            if any(line.startswith(marker + " ") for line in lines):
                return [line for line in lines if not line.startswith("/denied/marker-")]
        raise RuntimeError("nginx does not log what it answers")

    def protocols(self) -> list[str]:
        """The protocol of each answer so far."""
        self.requests()
        return [line.split(" ")[1] for line in self.log_path.with_name("protocols.log").read_text().splitlines()]


@contextmanager
def nginx(
    prefix: Path,
    root: Path,
    port: int | None = None,
    *,
    max_ranges: int | None = None,
    certificate: tuple[Path, Path] | None = None,
    settings: str = "",
) -> Iterator[Nginx]:
    """nginx over the files of `root`; everything that it writes is in `prefix`. Skips where there is no nginx.

    With a certificate and its key it speaks TLS, and in it HTTP/2 or HTTP/1.1. `settings` are more of its lines.
    """
    limits = "" if max_ranges is None else f"max_ranges {max_ranges};"
    tls = ";"
    if certificate is not None:
        tls = f" ssl http2; ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]}; {settings}"
    scheme = "http" if certificate is None else "https"
    with _started(prefix, CONFIG, port or free_port(), scheme, root=str(root), limits=limits, tls=tls) as started:
        yield started


@contextmanager
def balancer(prefix: Path, ports: list[int]) -> Iterator[Nginx]:
    """nginx before the servers at these ports, each of which gets the next request. Skips where there is no nginx."""
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=1s;" for port in ports)
    with _started(prefix, BALANCER, free_port(), "http", servers=servers) as started:
        yield started


@contextmanager
def _started(prefix: Path, text: str, port: int, scheme: str, **values: str) -> Iterator[Nginx]:
    program = need_program("nginx")
    prefix.mkdir(parents=True, exist_ok=True)
    user = "user root;" if os.geteuid() == 0 else ""
    config = prefix / "nginx.conf"
    config.write_text(text.format(prefix=prefix, port=port, user=user, **values))
    process = subprocess.Popen(
        [program, "-p", str(prefix), "-c", str(config), "-e", str(prefix / "error.log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_port(port, process, prefix)
        yield Nginx(f"{scheme}://127.0.0.1:{port}", process, prefix / "access.log")
    finally:
        process.terminate()
        process.wait(BOUND_S)


def _await_port(port: int, process: subprocess.Popen[bytes], prefix: Path) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(f"nginx ended: {(prefix / 'error.log').read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
        except OSError:
            continue
        return
    raise RuntimeError("nginx did not start")
