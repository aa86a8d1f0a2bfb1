"""`deploy/compose`: its schema, and that its commands, variables, files and probes are those of the programs."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from epochal import __version__
from epochal.state.config.state_file import parse_state
from tests.support.deployment import (
    COORDINATOR_BYTES,
    COORDINATOR_ENDS_WITHIN_S,
    DEPLOY,
    check_variables,
    compose,
    files_in,
    parsed_command,
    probe_paths,
    size_bytes,
)
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module

FOLDER = DEPLOY / "compose"
COMPOSE = compose()
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("coordinator", "data-server")


def mounted(service: dict[str, Any]) -> set[str]:
    """Return the paths of a service's configs, secrets and volumes."""
    volumes = {volume.split(":")[1] for volume in service.get("volumes", ())}
    secrets = {f"/run/secrets/{name}" for name in service.get("secrets", ())}
    return volumes | secrets | {config["target"] for config in service.get("configs", ())}


@pytest.mark.nightly
def test_file_follows_the_schema_of_compose() -> None:
    need_module("check_jsonschema")
    from jsonschema.validators import validator_for

    (package,) = find_spec("check_jsonschema").submodule_search_locations  # type: ignore[union-attr,misc]
    schema = json.loads((Path(package) / "builtin_schemas/vendor/compose-spec.json").read_text(encoding="utf-8"))
    check = validator_for(schema)(schema)
    assert [error.message for error in check.iter_errors(COMPOSE)] == []
    assert list(check.iter_errors(COMPOSE | {"services": {"coordinator": {"imgae": "epochal"}}}))


@pytest.mark.parametrize("name", OURS)
def test_command_is_one_that_epochal_takes(name: str) -> None:
    command, parameters = parsed_command(SERVICES[name]["command"])
    assert command == name
    assert str(parameters["host"]) == "0.0.0.0"


@pytest.mark.parametrize("name", OURS)
def test_every_file_that_a_program_is_told_is_mounted(name: str) -> None:
    service = SERVICES[name]
    told = [*files_in(service["command"]), *(v for k, v in service["environment"].items() if k.endswith("_FILE"))]
    assert len(told) > 2
    assert [path for path in told if path not in mounted(service) and not path.startswith("/etc/ssl/")] == []


@pytest.mark.parametrize("name", OURS)
def test_variables_are_known_and_hold_no_secret(name: str) -> None:
    environment: dict[str, str] = SERVICES[name]["environment"]
    assert check_variables([*environment]) == []
    plain = {key: value for key, value in environment.items() if not key.endswith("_FILE")}
    assert [value for value in plain.values() if re.search(r"://[^/@]*:[^/@]*@", value)] == []


def test_health_checks_ask_a_route_at_the_port_that_is_served() -> None:
    served = {
        "coordinator": parsed_command(SERVICES["coordinator"]["command"])[1]["port"],
        "data-server": parsed_command(SERVICES["data-server"]["command"])[1]["metrics_port"],
    }
    for name, port in served.items():
        check = SERVICES[name]["healthcheck"]["test"]
        compile(check[-1], name, "exec")
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)(/[a-z]+)", check[-1])
        assert found is not None
        assert (int(found[1]), found[2] in probe_paths()) == (port, True)


def test_state_and_data_files_are_valid_and_name_the_published_ports() -> None:
    run_main("check", str(FOLDER / "state.toml"), "--data-config", str(FOLDER / "data.toml"), "--no-files").expect(0)
    text = (FOLDER / "state.toml").read_text(encoding="utf-8")
    state = parse_state(text, "state.toml")
    ((host, port),) = state.model.LLM.data_location.addresses  # type: ignore[union-attr]
    assert SERVICES["data-server"]["ports"] == [f"{port}:{port}"]
    assert (host, state.model.LLM.data_location.tls) == ("data.example.org", True)  # type: ignore[union-attr]
    assert 'dir = "/srv/data"' in (FOLDER / "data.toml").read_text(encoding="utf-8")
    assert "./data:/srv/data:ro" in SERVICES["data-server"]["volumes"]


def test_names_of_the_balancer_are_those_that_nginx_answers() -> None:
    servers = (DEPLOY / "nginx/servers.conf").read_text(encoding="utf-8")
    aliases = SERVICES["balancer"]["networks"]["inside"]["aliases"]
    assert set(aliases) == set(re.findall(r"server_name ([a-z.]+\.example\.org);", servers))
    upstreams = (DEPLOY / "nginx/upstreams.conf").read_text(encoding="utf-8")
    assert set(re.findall(r"server ([a-z-]+):", upstreams)) <= set(SERVICES)
    port = parsed_command(SERVICES["coordinator"]["command"])[1]["port"]
    assert f"server coordinator:{port} " in upstreams
    state = (FOLDER / "state.toml").read_text(encoding="utf-8")
    assert 'endpoint = "https://objects.example.org"' in state
    (bucket,) = re.findall(r'bucket_name = "([a-z]+)"', state)
    assert f"store/{bucket}\n" in SERVICES["bucket"]["command"][0]


def test_files_that_it_names_exist_or_are_made_by_whoever_deploys() -> None:
    for config in COMPOSE["configs"].values():
        assert (FOLDER / config["file"]).is_file()
    ours = SERVICES["coordinator"]["build"]
    assert (FOLDER / ours["context"]).resolve() == DEPLOY.parent
    assert (FOLDER / ours["context"] / ours["dockerfile"]).is_file()
    ignored = (FOLDER / ".gitignore").read_text(encoding="utf-8").split()
    assert {Path(secret["file"]).parts[0] + "/" for secret in COMPOSE["secrets"].values()} <= set(ignored)


def test_services_declare_all_that_they_use() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
        assert {each["source"] for each in service.get("configs", ())} <= set(COMPOSE["configs"]), name
        assert set(service.get("depends_on", ())) <= set(SERVICES), name
        named = {each.split(":")[0] for each in service.get("volumes", ()) if not each.startswith(".")}
        assert named <= set(COMPOSE["volumes"]), name
        for other, wait in service.get("depends_on", {}).items():
            assert wait["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], (name, other)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_and_what_lasts_restarts(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert size_bytes(limits["memory"]) > 0
    assert float(limits["cpus"]) > 0
    assert SERVICES[name]["restart"] in ("unless-stopped", "on-failure")


def test_coordinators_have_the_memory_and_the_time_that_they_need() -> None:
    service = SERVICES["coordinator"]
    assert size_bytes(service["deploy"]["resources"]["limits"]["memory"]) >= COORDINATOR_BYTES
    assert float(service["stop_grace_period"].removesuffix("s")) >= COORDINATOR_ENDS_WITHIN_S
    assert service["deploy"]["replicas"] > 1
    assert service["image"] == f"epochal:{__version__}"
