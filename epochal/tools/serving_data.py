"""Serving a run's data over TCP: the files of a `data.toml`, to the clients that the coordinator assigns them to."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from epochal.batching.data_check import DataFindings, DataNeeds, look_at_data
from epochal.batching.packing.packed_batches import Packing
from epochal.coordinator_client.api import RunRequests
from epochal.data_providers.open_data import open_described, served_shape
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server import DataServer
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS
from epochal.data_providers.tcp.server_metrics import DataServerMetrics
from epochal.runtime.connections.descriptors import open_files_limit
from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.connections.shedding import LOOPBACK
from epochal.runtime.http.http_server import WouldBeUnencrypted
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.data_file import check_sequence_length, check_together
from epochal.state.config.data_location import Server
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.tools.run_inputs import fingerprint_problems, vocabulary_of
from epochal.tools.state_files import read_data_config

ANY_HOST = "0.0.0.0"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataServerOptions:
    """The options of a data server.

    Attributes:
        host, port: address to listen on; None for the run's `data_location`.
        tls_cert, tls_key: certificate chain and its key (PEM), for TLS.
        insecure: serve other machines without TLS, so that the network can read tickets and samples.
    """

    config_path: Path
    host: str | None = None
    port: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False


def trusting_holder_of(certificate: Path) -> ssl.SSLContext:
    """Return a context that trusts this certificate's holder under any name, for a process's requests to itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=str(certificate))
    return context


def listening_address(state: StateFile, options: DataServerOptions) -> tuple[str, int]:
    """Return the address of the options, else of the run's data location (on all interfaces, unless it is loopback).

    If the run's data come from elsewhere, the address is on loopback unless the options name another.

    Raises:
        InvalidInput: the run's data do not come from a data server, or from several, and no port was given.
    """
    location = state.model.LLM.data_location
    if options.port is not None:
        hosts = {host for host, _ in location.addresses} if isinstance(location, Server) else {LOOPBACK}
        return options.host or _host_for(hosts), options.port
    if not isinstance(location, Server):
        raise InvalidInput("the run's data_location names no data server; give --port to serve anyway")
    hosts, ports = {host for host, _ in location.addresses}, {port for _, port in location.addresses}
    if len(ports) > 1:
        raise InvalidInput(
            f"the run's data_location names several data servers ({location.root}); give this one's --port"
        )
    (port,) = ports
    return options.host or _host_for(hosts), port


def _host_for(hosts: Collection[str]) -> str:
    """Return the address to listen on so that clients with these hosts reach the server."""
    return min(hosts) if all(map(is_loopback, hosts)) else ANY_HOST


def tls_of(state: StateFile, options: DataServerOptions, host: str) -> ssl.SSLContext | None:
    """Return what a data server that listens on `host` speaks TLS with; None if it does not.

    Raises:
        InvalidInput: the certificate is invalid, or clients could not connect, or only unencrypted; the user's fault.
    """
    location = state.model.LLM.data_location
    wants_tls = isinstance(location, Server) and location.tls
    place = location.root if isinstance(location, Server) else ""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key must be given together")
    if options.tls_cert is not None:
        if place and not wants_tls and options.port is None:
            raise InvalidInput(
                f"clients would not speak TLS to this data server: the run's data_location is {place}; "
                f"allowed with --tls-cert: tls://{place.removeprefix('tcp://')}"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(options.tls_cert, options.tls_key)
        except OSError as error:  # ssl.SSLError is one
            files = f"{options.tls_cert} and {options.tls_key}"
            raise InvalidInput(f"{files} are not a certificate and its key: {error.strerror or error}") from error
        return context
    if not is_loopback(host) and (wants_tls or not options.insecure):
        asked = f"clients ask it over TLS ({place})" if wants_tls else "tickets and samples would be unencrypted"
        raise WouldBeUnencrypted(
            f"the data server would listen on {host}, for other machines, and {asked}; give --tls-cert and --tls-key"
            + ("" if wants_tls else ', with data_location = { Server = "tls://…" }, or accept it with --insecure')
        )
    return None


@contextlib.asynccontextmanager
async def serving_data(
    state: StateFile, options: DataServerOptions, coordinator: RunRequests, registry: CollectorRegistry
) -> AsyncIterator[tuple[str, int]]:
    """Serve data until the context is left; yield the host and port.

    Args:
        state: the run's configuration.
        options: the files to serve, and the address.
        coordinator: decides which client may read which samples.
        registry: the data server adds its metrics to it.

    Raises:
        InvalidInput: the data file is wrong or does not fit the run, the run's model does not know its tokens, or the
            address is taken.
        DataError: the data cannot be read.
    """
    config = read_data_config(options.config_path)
    source = "the coordinator's state file"
    if isinstance(state.model.LLM.data_location, Server):
        check_together(state, source, config, str(options.config_path))
    check_sequence_length(state, source, config, str(options.config_path))
    host, port = listening_address(state, options)
    tls = tls_of(state, options, host)
    files = await open_described(config, options.config_path.parent)
    try:
        await _check_data(files, state, options.config_path)
    except BaseException:
        await files.aclose()
        raise
    gate = CoordinatorGate(coordinator)
    server = DataServer(files, served_shape(config, files), gate, DEFAULT_LIMITS.within(open_files_limit()), tls)
    DataServerMetrics(registry).watch(server, gate)
    try:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(gate.follow())
            try:
                yield host, await _start(tasks, server, host, port)
            finally:
                await server.aclose()
                following.cancel()
    finally:
        await files.aclose()


async def _check_data(provider: DataProvider, state: StateFile, path: Path) -> None:
    """Raise `InvalidInput` if the run's model cannot take the data, of which some are read.

    What a task encoder of another package makes of samples is not known here.
    """
    vocabulary, findings = vocabulary_of(state), DataFindings()
    if state.packing.task_encoder is None:
        async with contextlib.aclosing(WorkerThread("epochal-data-server")) as worker:
            packing = Packing.of(state, vocabulary, worker, OWNERS)
            findings = await look_at_data(provider, DataNeeds.of(state, vocabulary, packing))
    findings.problems += fingerprint_problems(state, provider)
    for note in findings.notes:
        log.warning("data_look_wrong", extra={"reason": note})
    if findings.problems:
        raise InvalidInput(f"{path}: the run cannot be trained on these data: {'; '.join(findings.problems)}")


async def _start(tasks: asyncio.TaskGroup, server: DataServer, host: str, port: int) -> int:
    try:
        return await server.start(tasks, host, port)
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
