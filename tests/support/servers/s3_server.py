"""A real S3 API on this machine (moto's server), and a bucket on it."""

import collections
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module
from tests.support.servers.plain_http import PLAIN

BUCKET = "tokens"
RUNNING = re.compile(r"http://127\.0\.0\.1:\d+")
KEPT_LINES = 50
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yield the server's URL once it answers. The system chooses the port, so that no other test has it."""
    need_module("obstore")
    need_module("moto")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | AWS,
    )
    said, started = collections.deque[str](maxlen=KEPT_LINES), threading.Event()
    urls: list[str] = []

    def listen() -> None:  # to the end: a server whose pipe is full would wait
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                said.append(line)
                found = RUNNING.search(line)
                if found and not urls:
                    urls.append(found[0])
                    started.set()
        started.set()

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        started.wait(BOUND_S)
        assert urls, f"moto's server did not start:\n{''.join(said)}"
        _reset(urls[0])  # its first answers take long: only then it imports what it answers with
        yield urls[0]
    finally:
        process.kill()
        process.wait()
        listening.join()


def empty_bucket(url: str) -> Any:
    """Return the bucket `BUCKET`, without objects, as obstore's store. The environment must hold `AWS`."""
    import obstore.store

    _reset(url)
    return obstore.store.S3Store(BUCKET, region="us-east-1", endpoint=url, client_options={"allow_http": True})


def _reset(url: str) -> None:
    with httpx.Client(base_url=url, timeout=BOUND_S, verify=PLAIN) as http:
        http.post("/moto-api/reset")
        assert http.put(f"/{BUCKET}").status_code == 200
