"""`epochal coordinator` and `epochal data-server`: what a run's operator keeps running."""

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.serve import ServeOptions, serving
from epochal import __version__
from epochal.cli.data_server import DataServerOptions, run_configuration, serving_data, trusting_holder_of
from epochal.cli.logs import LogFormat, start_logging
from epochal.cli.shutdown import interruption
from epochal.cli.state_files import read_data_config, read_supported_state
from epochal.testnet.children import LISTENING
from runtime.clock import SystemClock
from runtime.http_server import Endpoint, allow_connections
from runtime.retry import RetryPolicy, system_jitter
from state.config.state_file import StateFile, check_together
from state.errors import EpochalError

RUNS_FOLDER = Path("runs")

LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How log lines look.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def say(text: str) -> None:
    """A line on standard output, at once: whoever started this process may wait for it."""
    typer.echo(text)
    sys.stdout.flush()


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The known error inside a group, or the first one."""
    known = group.subgroup(EpochalError)
    found = (known or group).exceptions[0]
    return first_error(found) if isinstance(found, BaseExceptionGroup) else found


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; one known error comes out of it, however many tasks failed."""
    try:
        asyncio.run(main)
    except BaseExceptionGroup as group:
        raise first_error(group) from None


def coordinator(
    state_path: Annotated[Path, typer.Argument(metavar="STATE.toml", help="The run's state file.")],
    data_config: Annotated[
        Path | None, typer.Option("--data-config", metavar="DATA.toml", help="Also serve the run's data over TCP.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")] = 8000,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run is kept; an existing one is resumed. Default: runs/RUN_ID.")
    ] = None,
    restored: Annotated[
        bool, typer.Option("--restored", help="The run directory is a backup's: clients go back to where it stands.")
    ] = False,
    new_admin_token: Annotated[
        bool, typer.Option("--new-admin-token", help="Make and print another admin token; the one before ends.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate chain in PEM, to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key in PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve plain HTTP beyond this machine.")] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Serve a run: hold its state, assign its data, keep its results. The same command resumes a run directory."""
    start_logging(log_format, verbose=verbose)
    state = read_supported_state(state_path)
    if data_config is not None:
        check_together(state, str(state_path), read_data_config(data_config), str(data_config))
    options = ServeOptions(
        run_dir=run_dir or RUNS_FOLDER / state.run_id,
        endpoint=Endpoint(host, port, tls_cert, tls_key, insecure),
        version=__version__,
        source=str(state_path),
        is_restored=restored,
        new_admin_token=new_admin_token,
    )
    run_to_end(_serve_run(state, options, data_config))


async def _serve_run(state: StateFile, options: ServeOptions, data_config: Path | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(state, options))
        if served.admin_token is not None:
            say(f"admin token (shown this once): {served.admin_token}")
        if data_config is not None:
            certificate = options.endpoint.tls_cert
            verify = True if certificate is None else trusting_holder_of(certificate)
            data_options = DataServerOptions(data_config, served.url, verify=verify)
            host, port = await stack.enter_async_context(serving_data(state, data_options))
            say(f"data server for run {state.run_id} {LISTENING}{host}:{port}")
        with interruption() as stop:
            say(f"coordinator of run {state.run_id} {LISTENING}{served.url}")
            await stop.wait()


def data_server(
    data_path: Annotated[Path, typer.Argument(metavar="DATA.toml", help="The data server's file.")],
    coordinator_url: Annotated[str, typer.Option("--coordinator", metavar="URL", help="The run's coordinator.")],
    host: Annotated[str | None, typer.Option(help="Where to listen. Default: as data_location says.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Default: as the run's data_location says.")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Certificate authorities to trust for the coordinator.")] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Serve a run's data over TCP, to each client what it is assigned."""
    start_logging(log_format, verbose=verbose)
    read_data_config(data_path)
    verify = True if tls_ca is None else str(tls_ca)
    run_to_end(_serve_data(DataServerOptions(data_path, coordinator_url, host, port, verify), verify))


async def _serve_data(options: DataServerOptions, verify: bool | str) -> None:
    allow_connections()
    retry_policy = RetryPolicy(SystemClock(), system_jitter())
    state = await run_configuration(options.coordinator_url, retry_policy, verify)
    async with serving_data(state, options) as (host, port):
        with interruption() as stop:
            say(f"data server for run {state.run_id} {LISTENING}{host}:{port}")
            await stop.wait()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(coordinator)
    app.command("data-server")(data_server)
