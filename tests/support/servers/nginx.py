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
from tests.support.deployment import DEPLOY, substituted
from tests.support.heavy import need_program
from tests.support.servers.ports import free_port

HEAD = """
{user}
daemon off;
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {prefix}/body; proxy_temp_path {prefix}/proxy; fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi; scgi_temp_path {prefix}/scgi;
"""
CONFIG = """
    log_format ranges '$uri "$http_range" $status $body_bytes_sent';
    access_log {prefix}/access.log ranges;
    server {{
        listen 127.0.0.1:{port};
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
    access_log off;
    client_max_body_size 0;
    proxy_request_buffering off;
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

LOCATIONS = """
    access_log off;
    absolute_redirect off;
    server {{
        listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
        {locations}
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


@contextmanager
def nginx(prefix: Path, root: Path, port: int | None = None, *, max_ranges: int | None = None) -> Iterator[Nginx]:
    """nginx over the files of `root`; everything that it writes is in `prefix`. Skips where there is no nginx."""
    limits = "" if max_ranges is None else f"max_ranges {max_ranges};"
    with _started(prefix, CONFIG, port or free_port(), "http", root=str(root), limits=limits) as started:
        yield started


@contextmanager
def balancer(prefix: Path, ports: list[int]) -> Iterator[Nginx]:
    """nginx before the servers at these ports, each of which gets the next request. Skips where there is no nginx."""
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=1s;" for port in ports)
    with _started(prefix, BALANCER, free_port(), "http", servers=servers) as started:
        yield started


@contextmanager
def with_locations(prefix: Path, locations: str, certificate: tuple[Path, Path]) -> Iterator[Nginx]:
    """nginx with these locations, over TLS with a certificate and its key. Skips where there is no nginx."""
    fields = {"locations": locations, "certificate": str(certificate[0]), "key": str(certificate[1])}
    with _started(prefix, LOCATIONS, free_port(), "https", **fields) as started:
        yield started


def deployed_config(
    prefix: Path, ports: list[int], port: int, certificate: tuple[Path, Path], *, objects_port: int
) -> Path:
    """Write the configuration of `deploy/nginx` for this machine, and return its file.

    Args:
        prefix: folder for all files.
        ports: of the coordinators.
        port: on which nginx listens.
        certificate: it and its key.
        objects_port: of the object store, which has the name 127.0.0.1; the coordinators have the name localhost.
    """
    texts = {path.name: path.read_text(encoding="utf-8") for path in (DEPLOY / "nginx").glob("*.conf")}
    user = "user root;" if os.geteuid() == 0 else ""
    (prefix / "nginx.conf").write_text(
        substituted(
            texts.pop("nginx.conf"),
            (r"\A", f"daemon off; {user}\n"),
            ("/tmp/", f"{prefix}/"),
            ("/dev/stderr", f"{prefix}/error.log"),
            ("/etc/nginx/epochal/", f"{prefix}/"),
            ("worker_processes auto;", "worker_processes 1;"),
            ("worker_rlimit_nofile 65536;", ""),
            ("worker_connections 32768;", "worker_connections 1024;"),
        )
    )
    (prefix / "servers.conf").write_text(
        substituted(
            texts.pop("servers.conf"),
            (r"listen 443 ", f"listen 127.0.0.1:{port} "),
            (r"listen 127\.0\.0\.1:8081;", f"listen unix:{prefix}/alive;"),
            ("server_name localhost;", "server_name alive;"),
            (r"coordinator\.example\.org", "localhost"),
            (r"objects\.example\.org", "127.0.0.1"),
            ("/run/secrets/tls_cert", str(certificate[0])),
            ("/run/secrets/tls_key", str(certificate[1])),
        )
    )
    (prefix / "upstreams.conf").write_text(
        substituted(  # nginx before 1.27.3 knows no `resolve`
            texts.pop("upstreams.conf"),
            (r"resolver .*;", ""),
            (
                r"server coordinator:8000 resolve ([a-z_=0-9 ]+);",
                lambda found: " ".join(f"server 127.0.0.1:{each} {found[1]};" for each in ports),
            ),
            ("server objects:9000 resolve;", f"server 127.0.0.1:{objects_port};"),
        )
    )
    assert not texts, f"{[*texts]} of deploy/nginx are not used"
    return prefix / "nginx.conf"


@contextmanager
def deployed_balancer(
    prefix: Path, ports: list[int], certificate: tuple[Path, Path], objects_port: int, port: int
) -> Iterator[Nginx]:
    """nginx with the configuration of `deploy/nginx`, at https://localhost. Skips where there is no nginx."""
    program = need_program("nginx")
    prefix.mkdir(parents=True, exist_ok=True)
    config = deployed_config(prefix, ports, port, certificate, objects_port=objects_port)
    with _running(program, config, port) as process:
        yield Nginx(f"https://localhost:{port}", process, prefix / "access.log")


@contextmanager
def mirror(prefix: Path, coordinator_url: str, token: str) -> Iterator[Nginx]:
    """nginx with the configuration of `deploy/mirror`. Skips where there is no nginx.

    Its log has path, range, status and whether the cache had it.
    """
    program, port = need_program("nginx"), free_port()
    prefix.mkdir(parents=True, exist_ok=True)
    config, user = prefix / "nginx.conf", "user root;" if os.geteuid() == 0 else ""
    config.write_text(
        substituted(
            (DEPLOY / "mirror/nginx.conf").read_text(encoding="utf-8"),
            (r"\A", f"daemon off; {user}\n"),
            ("/tmp/", f"{prefix}/"),
            ("/dev/stderr", f"{prefix}/error.log"),
            ("/var/cache/", f"{prefix}/cache-"),
            ("worker_processes auto;", "worker_processes 1;"),
            (
                "access_log off;",
                f"log_format mirror '$uri $status $upstream_cache_status'; access_log {prefix}/access.log mirror;",
            ),
            ("listen 8080;", f"listen 127.0.0.1:{port};"),
            (r"https://coordinator\.example\.org", coordinator_url),
            ("MIRROR_TOKEN", token),
        )
    )
    with _running(program, config, port) as process:
        yield Nginx(f"http://127.0.0.1:{port}", process, prefix / "access.log")


@contextmanager
def _started(prefix: Path, text: str, port: int, scheme: str, **values: str) -> Iterator[Nginx]:
    program = need_program("nginx")
    prefix.mkdir(parents=True, exist_ok=True)
    user = "user root;" if os.geteuid() == 0 else ""
    config = prefix / "nginx.conf"
    config.write_text((HEAD + text).format(prefix=prefix, port=port, user=user, **values))
    with _running(program, config, port) as process:
        yield Nginx(f"{scheme}://127.0.0.1:{port}", process, prefix / "access.log")


@contextmanager
def _running(program: str, config: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    prefix = config.parent
    process = subprocess.Popen(
        [program, "-p", str(prefix), "-c", str(config), "-e", str(prefix / "error.log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_port(port, process, prefix)
        yield process
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
