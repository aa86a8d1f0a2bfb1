"""`epochal data-server`: serve a run's data over TCP."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.coordinators import naming_wrong_token
from epochal.cli.options.shared import (
    DATA_SERVER_TOKEN_VARIABLE,
    CoordinatorCaOption,
    LogOptions,
    MetricsHostOption,
    TlsKeyOption,
    local_path,
    trusted,
)
from epochal.cli.output.printing import LISTENING, run_to_end, say
from epochal.cli.service_manager import serve_until
from epochal.cli.shutdown import interruption
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.connections.descriptors import allow_connections
from epochal.runtime.connections.shedding import LOOPBACK
from epochal.runtime.http.metrics_server import serving_metrics
from epochal.runtime.metrics.metrics_registry import new_registry
from epochal.runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from epochal.state.config.state_file import StateFile
from epochal.state.errors import CoordinatorUnreachable, InvalidInput, Refused
from epochal.state.refusals import Retry
from epochal.tools.serving_data import DataServerOptions, serving_data
from epochal.tools.state_files import read_data_config

DATA_FILE = "data.toml"
"""Describes the data in the folder of `epochal prepare`."""


def data_server(
    data_path: Annotated[
        Path,
        typer.Argument(
            metavar="DATA.toml",
            parser=local_path,
            help="File that describes the data, or the folder of `epochal prepare`.",
        ),
    ],
    coordinator_url: Annotated[
        str, typer.Option("--coordinator", metavar="URL", help="Address of the run's coordinator.")
    ],
    logged: LogOptions,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. Default: as the run's data_location says, on all interfaces if it names "
            "another machine; 127.0.0.1 if it names no data server."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 0 picks a free one. Default: as the run's data_location says."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=DATA_SERVER_TOKEN_VARIABLE,
            show_envvar=False,
            help="Token from `epochal token data-server`, with which the coordinator keeps a place for this server. "
            f"Better: set {DATA_SERVER_TOKEN_VARIABLE}.",
        ),
    ] = None,
    tls_ca: CoordinatorCaOption = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain in PEM, to serve TLS.")] = None,
    tls_key: TlsKeyOption = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve other machines without TLS: the network can read tickets and data."),
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on which Prometheus reads /metrics; 0 picks a free one.")
    ] = 0,
    metrics_host: MetricsHostOption = LOOPBACK,
    reconnect_s: Annotated[
        float,
        typer.Option(
            "--reconnect",
            min=0,
            help="Seconds to wait for a coordinator that does not answer when the server starts. Once it has answered, "
            "the server goes on without it for any time.",
        ),
    ] = DEFAULT_BOUND_S,
) -> None:
    """Serve a run's data over TCP: to each client the samples that the coordinator assigned to it."""
    logged.start()
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidInput("--token is not a token; allowed: what `epochal token data-server` prints")
    if data_path.is_dir():
        data_path = data_path / DATA_FILE
    read_data_config(data_path)
    options = DataServerOptions(data_path, host, port, tls_cert, tls_key, insecure)
    asked = _Asked(coordinator_url, trusted(tls_ca), token, RetryPolicy(bound_s=reconnect_s))
    run_to_end(_serve_data(options, asked, (metrics_port, metrics_host)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The coordinator that the data server follows, and how."""

    url: str
    verify: bool | str
    token: str | None
    retry_policy: RetryPolicy


async def _serve_data(options: DataServerOptions, asked: _Asked, metrics_address: tuple[int, str]) -> None:
    allow_connections()
    async with contextlib.AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(
            await CoordinatorClient.connect(asked.url, asked.retry_policy, asked.verify)
        )
        coordinator.use_token(asked.token)
        state = await _state_file(coordinator, asked)
        registry = new_registry()
        metrics_url = await stack.enter_async_context(serving_metrics(registry, *metrics_address))
        host, port = await stack.enter_async_context(serving_data(state, options, coordinator, registry))
        say(f"metrics at {metrics_url}")
        with interruption() as stop:
            await serve_until(stop, f"data server for run {state.run_id} {LISTENING}{host}:{port}")


async def _state_file(coordinator: CoordinatorClient, asked: _Asked) -> StateFile:
    """Return the run's state file; raise `InvalidInput` if the coordinator does not know the token."""
    backoff = asked.retry_policy.begin()
    while True:
        try:
            with contextlib.ExitStack() as reporting:
                if asked.token is not None:
                    reporting.enter_context(naming_wrong_token("data-server", DATA_SERVER_TOKEN_VARIABLE, asked.url))
                document = await DocumentFeed(coordinator).next(0.0)
                return await coordinator.config(document.config_sha256)
        except CoordinatorUnreachable as error:  # it stopped after it had answered
            await backoff.wait(error)
        except Refused as error:
            if error.kind.retry is not Retry.LATER:
                raise
            await backoff.wait(error)
