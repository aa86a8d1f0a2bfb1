"""A run as `deploy/` deploys it: its commands and its nginx before real coordinators, PostgreSQL and an S3 server."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509

from epochal.cli.service_manager import SOCKET_VARIABLE
from epochal.coordinator.api.request_parts import STALE_HEADER
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.tools.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.deployment import DEPLOY, compose, probe_paths, substituted, unit
from tests.support.drive.processes import RealRun, in_training, prepared_run
from tests.support.servers.certificates import LOOPBACK, issued
from tests.support.servers.nginx import deployed_balancer
from tests.support.servers.ports import free_port
from tests.support.servers.postgres_server import PostgresServer, postgres_server
from tests.support.servers.s3_server import AWS, BUCKET, empty_bucket, s3_server

PASSWORD = "a pass/word@of:everything"
ROLE = "epochal"
STEPS = 15


@dataclass
class Deployed:
    """The compose file's run on this machine. The folder `secrets` has the files that its secrets name."""

    run: RealRun
    secrets: Path
    store: str
    ports: dict[str, int]
    coordinators: list[Child] = field(default_factory=list)

    async def start(self, name: str, service: str, *replacements: tuple[str, str], **more: str) -> Child:
        """Start a service's command with this machine's addresses and files; return when it listens."""
        place = self.run.folder
        words = [word for word in compose()["services"][service]["command"] if not word.startswith("--log-format")]
        text = substituted("\n".join(words), (r"0\.0\.0\.0", "127.0.0.1"), ("/etc/epochal", str(place)), *replacements)
        text = text.replace("/run/secrets", str(self.secrets))
        child = await self.run.children.start(name, *text.split("\n"), environment=self.variables(service) | more)
        await self.run.line_of(child, "listening on ")
        return child

    def variables(self, service: str) -> dict[str, str]:
        """Return a service's variables with this machine's files and database."""
        given: dict[str, str] = compose()["services"][service]["environment"]
        local = {name: value.replace("/run/secrets", str(self.secrets)) for name, value in given.items()}
        local |= {"EPOCHAL_STORE": self.store} if "EPOCHAL_STORE" in given else {}
        return dict.fromkeys(AWS, "") | local | {"SSL_CERT_FILE": str(self.secrets / "tls_cert")}

    async def start_coordinator(self, number: int, **more: str) -> Child:
        """Start a coordinator by the compose file's command."""
        port = ("--port=8000", f"--port={self.ports[f'coordinator {number}']}")
        child = await self.start(f"coordinator-{number}", "coordinator", port, **more)
        self.coordinators.append(child)
        return child

    async def start_data_server(self) -> Child:
        """Start a data server by the compose file's command, with a token that the store's key has signed."""
        made = await self.run.command("token", "data-server", **self.variables("coordinator"))
        made.expect(0)
        (self.secrets / "data_server_token").write_text(made.out, encoding="utf-8")
        return await self.start(
            "data-server",
            "data-server",
            (r"https://coordinator\.example\.org", f"https://localhost:{self.ports['balancer']}"),
            ("--metrics-port=9101", "--metrics-port=0"),
        )


def ask_for_password(server: PostgresServer) -> None:
    """Let a role of the database need a password."""
    server.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
    rules = server.folder / "data/pg_hba.conf"
    rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.execute("SELECT pg_reload_conf()")


@contextlib.asynccontextmanager
async def deployed(folder: Path, server: PostgresServer, objects_port: int) -> AsyncIterator[Deployed]:
    """Yield the run behind its balancer; no coordinator is started."""
    secrets = folder / "secrets"
    secrets.mkdir()
    certificate = issued(folder, LOOPBACK, x509.DNSName("localhost"))
    values = {"postgres_password": PASSWORD, "objects_user": AWS["AWS_ACCESS_KEY_ID"]}
    values |= {"objects_password": AWS["AWS_SECRET_ACCESS_KEY"]}
    for name, value in values.items():
        (secrets / name).write_text(f"{value}\n", encoding="utf-8")
    for name, path in zip(("tls_cert", "tls_key"), certificate, strict=True):
        (secrets / name).write_bytes(path.read_bytes())
    ports = {name: free_port() for name in ("balancer", "coordinator 1", "coordinator 2", "data-server")}
    data = folder / "data"
    data.mkdir()
    (np.arange(200_000) % 251).astype("<u2").tofile(data / "tokens.bin")
    server.execute(f"GRANT ALL ON SCHEMA public TO {ROLE}", url := server.new_database())
    both = [ports["coordinator 1"], ports["coordinator 2"]]
    with deployed_balancer(folder / "nginx", both, certificate, objects_port, ports["balancer"]) as nginx:
        async with prepared_run(folder / "run") as run:
            run.store = url
            text = (DEPLOY / "compose/state.toml").read_text(encoding="utf-8")
            text = substituted(
                text,
                (r"data\.example\.org:39405", f"localhost:{ports['data-server']}"),
                (r"https://objects\.example\.org", nginx.url.replace("localhost", "127.0.0.1")),
                ('bucket_name = "epochal"', f'bucket_name = "{BUCKET}"'),
                ("total_steps = 1000", f"total_steps = {STEPS}"),
                ("waiting_for_members_extra_time = 5", "waiting_for_members_extra_time = 0.1"),
            )
            run.state_path.write_text(text, encoding="utf-8")
            text = (DEPLOY / "compose/data.toml").read_text(encoding="utf-8")
            (run.folder / "data.toml").write_text(substituted(text, ("/srv/data", str(data))), encoding="utf-8")
            yield Deployed(run, secrets, url.replace("postgres@", f"{ROLE}@"), ports)


async def told(manager: socket.socket) -> str:
    """Return what a server tells its service manager next."""
    return (await asyncio.wait_for(asyncio.get_running_loop().sock_recv(manager, 100), BOUND_S)).decode()


@pytest.mark.nightly
async def test_run_trains_as_deployed_and_survives_a_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        objects, server = stack.enter_context(s3_server()), stack.enter_context(postgres_server())
        for name, value in AWS.items():
            monkeypatch.setenv(name, value)
        empty_bucket(objects)
        ask_for_password(server)
        manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.setblocking(False)
        manager.bind(str(tmp_path / "notify"))
        async with deployed(tmp_path, server, int(objects.rpartition(":")[2])) as live:
            monkeypatch.setenv("SSL_CERT_FILE", str(live.secrets / "tls_cert"))
            run = live.run
            first = await live.start_coordinator(1, **{SOCKET_VARIABLE: str(tmp_path / "notify")})
            assert await told(manager) == "READY=1"
            await run.reach(f"https://localhost:{live.ports['balancer']}", str(live.secrets / "tls_cert"))
            second = await live.start_coordinator(2)
            await live.start_data_server()
            await check_routes(live)
            for _ in range(2):
                await run.start_client("--tls-ca", str(live.secrets / "tls_cert"))
            await run.until(in_training(3))
            second.kill()
            assert await second.wait(BOUND_S) == -signal.SIGKILL
            await check_outage(live, server)
            assert (await run.finish()).rounds == STEPS
            first.process.send_signal(signal.SIGTERM)
            assert await first.wait(BOUND_S) == 0
            assert await told(manager) == "STOPPING=1"


async def check_routes(live: Deployed) -> None:
    """Assert that coordinators answer their probes, and that nginx passes on what it should."""
    async with httpx.AsyncClient(timeout=BOUND_S) as behind:
        for number in (1, 2):
            for path in probe_paths():
                answer = await behind.get(f"http://127.0.0.1:{live.ports[f'coordinator {number}']}{path}")
                assert answer.status_code == 200, (path, answer.text)
    statuses = {path: (await live.run.http.get(path)).status_code for path in ("/readyz", "/v1/runs", "/metrics")}
    assert statuses == {"/readyz": 200, "/v1/runs": 200, "/metrics": 404}
    other = await live.run.http.get("/v1/runs", headers={"Host": "page.example"})
    assert other.status_code == 421


async def check_outage(live: Deployed, server: PostgresServer) -> None:
    """Assert that clients hear from the coordinator itself, through nginx, that its database is away, and end that."""
    http = live.run.http
    server.kill()
    async with asyncio.timeout(BOUND_S):
        while (answer := await http.get("/readyz")).status_code == 200:
            pass
    assert (answer.status_code, "goes on by itself" in answer.text) == (503, True)
    read = await http.get(f"/v1/runs/{live.run.watch.api.run_id}/status")
    assert (read.status_code, read.headers[STALE_HEADER]) == (200, "true")
    server.start()


@pytest.mark.nightly
async def test_command_of_the_unit_serves_from_its_credentials(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    text = (DEPLOY / "compose/state.toml").read_text(encoding="utf-8")
    (credentials / "state.toml").write_text(substituted(text, (r"store = .*", "")), encoding="utf-8")
    (credentials / "store").write_text(f"{tmp_path / 'state'}\n", encoding="utf-8")
    for name, path in zip(("tls-cert", "tls-key"), issued(tmp_path, LOOPBACK), strict=True):
        (credentials / name).write_bytes(path.read_bytes())
    settings, port = unit("coordinator"), free_port()
    words = settings["ExecStart"][0].replace("%d", str(credentials)).replace(" --log-format json", "").split()[1:]
    words = substituted("\n".join(words), ("0.0.0.0", "127.0.0.1"), ("8443", str(port))).split("\n")
    variables = dict(word.split("=", 1) for word in settings["Environment"][0].replace("%d", str(credentials)).split())
    async with prepared_run(tmp_path / "run") as run:
        child = await run.children.start("coordinator", *words, environment=variables)
        await run.line_of(child, "listening on ")
        await run.reach(f"https://127.0.0.1:{port}", str(credentials / "tls-cert"))
        assert (await run.http.get("/readyz")).text == "ready\n"
        assert (tmp_path / "state" / DATABASE_FILE).is_file()
        child.process.send_signal(signal.SIGTERM)
        assert await child.wait(BOUND_S) == 0
