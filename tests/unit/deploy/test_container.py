"""`deploy/Containerfile`: it copies what the wheel needs, installs extras that exist, and starts the command."""

import json
import re
import tomllib

from tests.support.deployment import DEPLOY, ROOT

TEXT = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_context_holds_the_files_that_make_the_wheel_and_no_others() -> None:
    lines = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    packages = {"epochal", *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]}
    project = PROJECT["project"]
    others = {name for name in project["license-files"] if name.partition("/")[0] not in packages}
    assert allowed == packages | {"pyproject.toml", "constraints.txt", project["readme"], *others}
    assert lines[1] == "*"


def test_extras_exist_and_are_those_of_a_run_in_a_database() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", TEXT, re.MULTILINE)
    assert set(extras.split(",")) == {"postgres", "object-stores"}
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_image_starts_the_command_as_a_user_without_rights() -> None:
    (start,) = re.findall(r"^ENTRYPOINT (.*)$", TEXT, re.MULTILINE)
    assert set(json.loads(start)) <= set(PROJECT["project"]["scripts"])
    assert re.search(r"^USER [1-9][0-9]+:[1-9][0-9]+$", TEXT, re.MULTILINE)


def test_image_installs_nothing_without_a_hash_but_torch() -> None:
    installs = re.findall(r"pip install [^;&]*", TEXT.replace("\\\n", " "))
    assert len(installs) == 5
    assert ["--require-hashes" in install or '"$TORCH"' in install for install in installs] == [True] * 5
    assert "python -m build --no-isolation" in TEXT


def test_python_is_one_that_the_project_supports() -> None:
    versions = {tuple(map(int, found)) for found in re.findall(r"python:(3)\.([0-9]+)-slim", TEXT)}
    least = tuple(map(int, PROJECT["project"]["requires-python"].removeprefix(">=").split(".")))
    assert len(versions) == 1
    assert min(versions) >= least
