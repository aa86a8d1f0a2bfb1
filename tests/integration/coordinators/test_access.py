"""Runs over TLS, and plain HTTP only on this machine."""

from pathlib import Path

import pytest
from cryptography import x509

from epochal.data_providers.protocol import Rejected
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from tests.support.data.token_files import write_served_tokens
from tests.support.drive.processes import prepared_run
from tests.support.servers.certificates import self_signed


async def test_run_over_tls_is_joined_with_its_authority_and_not_without(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    async with prepared_run(tmp_path / "run", config__total_steps=2) as run:
        await run.start_coordinator("--tls-cert", str(certificate), "--tls-key", str(key), verify=str(certificate))
        assert run.url.startswith("https://127.0.0.1:")
        (await run.command("client", run.url)).expect(2, "self-signed certificate", "--tls-ca")
        await run.start_client("--tls-ca", str(certificate))
        assert (await run.finish()).rounds == 2
        (await run.command("status", run.url)).expect(2)
        (await run.command("status", run.url, "--tls-ca", str(certificate))).expect(0)
        (await run.command("status", run.url, "--tls-ca", str(key))).expect(2)
        audit = ("audit", run.store, "--record", "--admin-token", run.admin_token)
        (await run.command(*audit)).expect(2, "self-signed certificate", "--tls-ca")
        recorded = await run.command(*audit, "--tls-ca", str(certificate))
        assert (recorded.code, "recorded in the run's history" in recorded.err) == (0, True), recorded.err
        listed = await run.command("runs", str(tmp_path / "run"))
        listed.expect(0, "test-run: version ", f"served at {run.url}")


async def test_data_server_trusts_its_own_coordinator_under_any_name(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, x509.DNSName("coordinator.example"))
    data_config, port = write_served_tokens(tmp_path)
    async with prepared_run(tmp_path / "run", model__LLM__data_location={"Server": f"127.0.0.1:{port}"}) as run:
        await run.start_server(
            "coordinator",
            *("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", "0"),
            *("--data-config", str(data_config), "--tls-cert", str(certificate), "--tls-key", str(key)),
        )
        with pytest.raises(Rejected, match="ticket is not valid"):
            await TcpDataProvider.open(DataServerAddress("127.0.0.1", port, "test-run"), lambda: "no ticket")
