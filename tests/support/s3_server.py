"""A real S3 API on this machine (moto's server), and a bucket on it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module
from tests.support.ports import free_port

BUCKET = "tokens"
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yield the server's URL."""
    need_module("obstore")
    need_module("moto")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | AWS,
    )
    try:
        deadline_s = time.monotonic() + BOUND_S
        while time.monotonic() < deadline_s and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
                break
            except OSError:
                continue
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def empty_bucket(url: str) -> Any:
    """Return the bucket `BUCKET`, without objects, as obstore's store. The environment must hold `AWS`."""
    import obstore.store

    httpx.post(f"{url}/moto-api/reset")
    assert httpx.put(f"{url}/{BUCKET}").status_code == 200
    return obstore.store.S3Store(BUCKET, region="us-east-1", endpoint=url, client_options={"allow_http": True})
