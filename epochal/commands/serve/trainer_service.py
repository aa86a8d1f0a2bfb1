"""`epochal trainer-service`: a trainer behind HTTP, for clients with `--trainer remote`."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from epochal.batching.chunking.policies import MAX_CHUNK_BYTES, MAX_CHUNK_ITEMS
from epochal.cli.options.shared import (
    AllowedHostOption,
    HostOption,
    InsecureOption,
    LogOptions,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    trainer_token,
)
from epochal.cli.output.printing import LISTENING, run_to_end
from epochal.cli.service_manager import serve_until
from epochal.cli.shutdown import interruption
from epochal.runtime.clock import SystemClock
from epochal.runtime.connections.descriptors import allow_connections
from epochal.runtime.http.allowed_hosts import ANY_HOST, allowed_hosts
from epochal.runtime.http.http_server import Endpoint, serving_app
from epochal.runtime.worker_thread import WorkerThread
from epochal.trainers.remote.service_messages import FRAME_BYTES, ServiceLimits
from epochal.training_service.service import TrainingServiceOptions
from epochal.training_service.service_app import create_app
from epochal.training_service.sessions import MAX_SESSIONS, SessionBounds


def trainer_service(
    logged: LogOptions,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8100,
    max_chunk_items: Annotated[
        int, typer.Option(min=1, help="Maximum number of examples in a request.")
    ] = MAX_CHUNK_ITEMS,
    max_chunk_bytes: Annotated[
        int, typer.Option(min=1, help="Maximum size of a request, counting ten bytes for each number.")
    ] = MAX_CHUNK_BYTES,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Maximum number of clients that train at the same time.")
    ] = MAX_SESSIONS,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    insecure: InsecureOption = False,
    allowed_host: AllowedHostOption = None,
) -> None:
    """Compute for clients that cannot train themselves: they send examples, this machine trains on them.

    If EPOCHAL_TRAINER_TOKEN is set, clients must present this token; otherwise everyone who reaches the port may train.
    """
    logged.start()
    endpoint = Endpoint(host, port, tls_cert, tls_key, insecure)
    limits = ServiceLimits(max_chunk_items, max_chunk_bytes, 2 * max_chunk_bytes + FRAME_BYTES)
    options = TrainingServiceOptions(limits, trainer_token(), SessionBounds(max_sessions))
    hosts = allowed_hosts(endpoint.host, allowed_host or ())

    async def main() -> None:
        async with serving_training(endpoint, options, hosts) as url:
            with interruption() as stop:
                await serve_until(stop, f"training service {LISTENING}{url}")

    run_to_end(main())


@contextlib.asynccontextmanager
async def serving_training(
    endpoint: Endpoint, options: TrainingServiceOptions, hosts: frozenset[str] | None = ANY_HOST
) -> AsyncIterator[str]:
    """Serve until the context is left, under these names; yields the URL.

    Raises:
        InvalidInput: the address cannot be listened on; the user's fault.
    """
    endpoint.check()
    allow_connections()
    worker = WorkerThread("epochal-service")
    try:
        async with serving_app(endpoint, create_app(options, worker, SystemClock(), hosts)) as url:
            yield url
    finally:
        await worker.aclose()
