"""`deploy/kubernetes`: schemas, and that commands, variables, files, probes and references fit."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from epochal import __version__
from tests.support.deployment import (
    COORDINATOR_BYTES,
    COORDINATOR_ENDS_WITHIN_S,
    DEPLOY,
    check_variables,
    files_in,
    manifests,
    objects,
    parsed_command,
    probe_paths,
    size_bytes,
)
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module

DEPLOYMENTS = objects("Deployment")
SECRETS = objects("Secret")
MADE_BY_OTHERS = {"epochal-data-tls", "epochal-tls", "epochal-data"}
"""Certificates, and the volume of the data."""


def pod_of(name: str) -> dict[str, Any]:
    """Return the pod's specification."""
    pod: dict[str, Any] = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    return pod


def container_of(name: str) -> dict[str, Any]:
    """Return the pod's only container."""
    (container,) = pod_of(name)["containers"]
    found: dict[str, Any] = container
    return found


def mounted(name: str) -> set[str]:
    """Return the paths of a pod's files and folders from volumes."""
    volumes = {volume["name"]: volume for volume in pod_of(name)["volumes"]}
    paths = set()
    for mount in container_of(name)["volumeMounts"]:
        volume, place = volumes[mount["name"]], mount["mountPath"]
        paths.add(place)
        if "configMap" in volume:
            paths |= {f"{place}/{key}" for key in objects("ConfigMap")[volume["configMap"]["name"]]["data"]}
        elif "secret" in volume:
            keys = [item["path"] for item in volume["secret"].get("items", ())] or ["tls.crt", "tls.key"]
            paths |= {f"{place}/{key}" for key in keys}
    return paths


def test_manifests_follow_the_schemas_of_kubernetes() -> None:
    need_module("kubernetes_validate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kubernetes_validate

    for each in manifests():
        kubernetes_validate.validate(each, "1.37", strict=True)
    spoiled = DEPLOYMENTS["epochal-coordinator"]["spec"] | {"replcas": 2}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(DEPLOYMENTS["epochal-coordinator"] | {"spec": spoiled}, "1.37", strict=True)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_command_is_one_that_epochal_takes(name: str) -> None:
    command, parameters = parsed_command(container_of(name)["args"])
    assert name == f"epochal-{command}"
    assert parameters["host"] == "0.0.0.0"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_file_that_a_program_is_told_is_mounted(name: str) -> None:
    variables = {each["name"]: each["value"] for each in container_of(name)["env"] if "value" in each}
    told = [*files_in(container_of(name)["args"]), *variables.values()]
    assert len(told) > 1
    assert [path for path in told if path not in mounted(name)] == []
    assert check_variables([*variables]) == []


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_secrets_have_the_keys_that_are_mounted(name: str) -> None:
    for volume in pod_of(name)["volumes"]:
        secret = volume.get("secret", {"secretName": "epochal-tls"})
        if secret["secretName"] not in MADE_BY_OTHERS:
            keys = {item["key"] for item in secret["items"]}
            assert keys <= set(SECRETS[secret["secretName"]]["stringData"])


def test_secrets_of_the_repository_are_no_secrets() -> None:
    (secret,) = SECRETS.values()
    assert [key for key, value in secret["stringData"].items() if "CHANGE-ME" not in value] == []


def test_state_and_data_files_of_the_config_map_are_valid(tmp_path: Path) -> None:
    (config,) = objects("ConfigMap").values()
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    state, data = str(tmp_path / "state.toml"), str(tmp_path / "data.toml")
    run_main("check", state, "--data-config", data, "--no-files").expect(0)
    mounts = {mount["mountPath"] for mount in container_of("epochal-data-server")["volumeMounts"]}
    assert 'dir = "/srv/data"' in config["data"]["data.toml"]
    assert "/srv/data" in mounts


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_probes_ask_routes_at_ports_that_are_served(name: str) -> None:
    container = container_of(name)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    parameters = parsed_command(container["args"])[1]
    served = {"http": parameters["port"], "data": parameters["port"], "metrics": parameters.get("metrics_port")}
    assert {key: served[key] for key in ports} == ports
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe].get("httpGet")
        assert (asked or container[probe]["tcpSocket"])["port"] in ports
        if asked is not None:
            paths = probe_paths() if asked["port"] == "http" else {"/metrics"}
            assert asked["path"] in paths
    annotations = DEPLOYMENTS[name]["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) in ports.values()
    assert annotations["prometheus.io/path"] == "/metrics"


def test_readiness_is_the_databases_and_liveness_is_not() -> None:
    container = container_of("epochal-coordinator")
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_selectors_find_the_pods_and_one_stays(name: str) -> None:
    spec = DEPLOYMENTS[name]["spec"]
    labels = spec["template"]["metadata"]["labels"].items()
    service, budget = objects("Service")[name], objects("PodDisruptionBudget")[name]
    for selector in (spec["selector"]["matchLabels"], budget["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels
    assert service["spec"]["selector"].items() <= labels
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= {
        port["name"] for port in container_of(name)["ports"]
    }
    assert 0 < budget["spec"]["minAvailable"] < spec["replicas"]


def test_addresses_between_the_objects_lead_somewhere() -> None:
    services = objects("Service")
    (ingress,) = objects("Ingress").values()
    for rule in ingress["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            backend = path["backend"]["service"]
            ports = {port["name"] for port in services[backend["name"]]["spec"]["ports"]}
            assert backend["port"]["name"] in ports
            assert path["path"] == "/v1" or path["path"] in probe_paths()
    asked = parsed_command(container_of("epochal-data-server")["args"])[1]["coordinator_url"]
    host, _, port = asked.removeprefix("http://").partition(":")
    assert int(port) in {each["port"] for each in services[host]["spec"]["ports"]}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_containers_run_without_rights_as_the_images_user(name: str) -> None:
    pod, container = pod_of(name), container_of(name)
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "/var/tmp" in mounted(name)
    assert container["image"].endswith(f"/epochal:{__version__}")


def test_coordinators_have_the_memory_and_the_time_that_they_need() -> None:
    pod, container = pod_of("epochal-coordinator"), container_of("epochal-coordinator")
    assert size_bytes(container["resources"]["limits"]["memory"]) >= COORDINATOR_BYTES
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] - before_s >= COORDINATOR_ENDS_WITHIN_S
    readiness = container["readinessProbe"]
    assert before_s >= readiness["periodSeconds"] * readiness["failureThreshold"]
