"""An operator's commands on who may join and when a run ends: on real runs, without a restart, and kept over one."""

import json
from pathlib import Path

import pytest

from epochal.coordinator_client.client_key import load_key
from tests.support.drive.processes import real_run


@pytest.mark.nightly
async def test_key_is_admitted_without_a_restart_and_kept_over_one(tmp_path: Path) -> None:
    key = str(tmp_path / "me.key")
    access = {"mode": "keys", "keys": ["ab" * 32]}
    async with real_run(tmp_path / "run", access=access, config__total_steps=20) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        public_key = (await run.command_here("key", "new", key)).out.strip()
        assert public_key == load_key(tmp_path / "me.key").public_key
        (await run.command_here("key", "new", key)).expect(2, "exists, and is not overwritten")
        assert (await run.command_here("key", "show", key)).out.strip() == public_key
        (await run.command_here("access", "add", run.url, "me.key", **token)).expect(2, "64 lowercase hex digits")
        (await run.command("client", run.url, "--key", key)).expect(1, "is not among this run's [access] keys")
        (await run.command_here("access", "add", run.url, public_key, **token)).expect(0, f"{public_key} may join")
        (await run.command_here("finish", run.url, "--after-step", "3", **token)).expect(0, "will end after step 3")
        await run.kill_coordinator()
        await run.start_coordinator()
        listed = json.loads((await run.command_here("access", "list", run.url, "--json", **token)).out)
        assert [(one["public_key"], one["source"]) for one in listed["keys"]] == [
            ("ab" * 32, "state file"),
            (public_key, "command"),
        ]
        (await run.command_here("access", "remove", run.url, "ab" * 32, **token)).expect(0, "may not join")
        await run.start_client("--key", key, "--name", "LAB é")
        report = await run.finish()
        assert report.rounds == 3
        (await run.command_here("finish", run.url, **token)).expect(2, "--after-step N or --cancel")
        audit = await run.command_here("audit", str(run.run_dir), **token)
        assert audit.code == 0
        assert "recorded in the run's history" in audit.err
        again = await run.command_here("audit", str(run.run_dir), "--no-record", **token)
        assert "recorded" not in again.err
        place = f"/v1/runs/{run.watch.api.run_id}"
        (recorded,) = (await run.http.get(f"{place}/audits")).json()["audits"]
        assert recorded["report"]["rounds"] == 3
        names = [action["name"] for action in (await run.http.get(f"{place}/actions")).json()["actions"]]
        assert names == ["genesis", "access add", "finish", "access remove", "audit"]
        members = (await run.http.get(f"{place}/members")).json()
        assert members["members"]["name"] + members["gone"]["name"] == ["LAB é"]
        assert run.admin_token not in run.coordinator.log_tail()


async def test_invitation_is_made_used_listed_and_revoked(tmp_path: Path) -> None:
    access = {"mode": "invitations"}
    async with real_run(tmp_path / "run", access=access, config__total_steps=2) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        made = await run.command_here("invite", run.url, "--uses", "2", "--expires", "3d", **token)
        made.expect(0, "admits 2 clients, until", f"epochal client {run.url}")
        code = made.out.split()[1]
        (await run.command_here("invite", run.url, "--expires", "soon", **token)).expect(
            2, "allowed: a number and a unit"
        )
        (await run.command_here("invite", run.url)).expect(2)
        await run.start_client("--invitation", code)
        assert (await run.finish()).rounds == 2
        listed = await run.command_here("invite", run.url, "--list", **token)
        listed.expect(0, "1 of 2 used, until")
        (await run.command_here("invite", run.url, "--revoke", "zz", **token)).expect(2, "no invitations have an id")
        shown_id = listed.out.split()[0]
        (await run.command_here("invite", run.url, "--revoke", shown_id, **token)).expect(0, "had admitted 1 of 2")
        (await run.command_here("invite", run.url, "--list", **token)).expect(0, "no invitation was made")
        kept = b"".join(path.read_bytes() for path in run.run_dir.glob("run.sqlite*"))
        assert code.encode() not in kept
        assert code not in run.coordinator.log_tail()
