"""`deploy/nginx`: nginx takes the files, and their times fit those of coordinators and clients."""

import re
import subprocess
from pathlib import Path

from epochal.coordinator.run.long_polls import MAX_HOLD_S, MAX_MORE_HOLD_S
from epochal.coordinator_client.session import MAX_WAIT_S
from epochal.coordinator_client.stored_blobs import BLOB_TIMEOUT_S
from epochal.runtime.http.http_server import KEEP_ALIVE_S as SERVER_KEEP_ALIVE_S
from epochal.runtime.http.session import KEEP_ALIVE_S
from tests.support.bounds import BOUND_S
from tests.support.deployment import DEPLOY
from tests.support.heavy import need_program
from tests.support.servers.certificates import self_signed
from tests.support.servers.nginx import deployed_config

SERVERS = (DEPLOY / "nginx/servers.conf").read_text(encoding="utf-8")
UPSTREAMS = (DEPLOY / "nginx/upstreams.conf").read_text(encoding="utf-8")


def seconds(text: str, directive: str) -> float:
    """Return a directive's time, the same at each of its places."""
    (found,) = set(re.findall(rf"^\s*{directive} ([0-9]+)s;", text, re.MULTILINE))
    return float(found)


def test_nginx_takes_the_configuration(tmp_path: Path) -> None:
    program = need_program("nginx")
    config = deployed_config(tmp_path, [8001, 8002], 8443, self_signed(tmp_path), objects_port=9000)
    ran = subprocess.run([program, "-t", "-q", "-c", str(config)], capture_output=True, text=True, timeout=BOUND_S)
    assert ran.returncode == 0, ran.stderr


def test_an_answer_that_waits_is_waited_for() -> None:
    longest_s = max(MAX_HOLD_S + MAX_MORE_HOLD_S, MAX_WAIT_S, BLOB_TIMEOUT_S)
    assert seconds(SERVERS, "proxy_read_timeout") > longest_s
    assert seconds(SERVERS, "proxy_send_timeout") > longest_s


def test_connections_end_at_the_side_that_opened_them() -> None:
    assert seconds(UPSTREAMS, "keepalive_timeout") < SERVER_KEEP_ALIVE_S
    assert seconds(SERVERS, "keepalive_timeout") > KEEP_ALIVE_S


def test_bodies_of_any_size_pass_without_being_kept() -> None:
    for line in ("client_max_body_size 0;", "proxy_request_buffering off;", "proxy_buffering off;", "proxy_cache off;"):
        assert f"\n{line}" in SERVERS
