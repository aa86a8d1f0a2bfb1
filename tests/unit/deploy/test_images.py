"""`deploy/images.env`: it names every image of others that the files of `deploy/` use, all by digest or none."""

import re

from tests.support.deployment import DEPLOY

LINE = re.compile(r"(?P<variable>[A-Z]+_IMAGE)=(?P<image>[a-z0-9./-]+:[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?")
LINES = [
    found
    for line in (DEPLOY / "images.env").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#") and (found := LINE.fullmatch(line)) is not None
]
IMAGES = {found["variable"]: found["image"] for found in LINES}
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMPOSE = (DEPLOY / "compose/compose.yaml").read_text(encoding="utf-8")
OURS = {"EPOCHAL_IMAGE": "epochal:0.1.0"}


def test_every_line_is_an_image_and_all_have_digests_or_none() -> None:
    text = (DEPLOY / "images.env").read_text(encoding="utf-8")
    assert len(LINES) == sum(not line.startswith("#") for line in text.splitlines())
    assert len({found["digest"] is None for found in LINES}) == 1


def test_container_file_names_no_image_but_those_in_the_list() -> None:
    assert set(re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    defaults = dict(re.findall(r"^ARG ([A-Z]+_IMAGE)=(\S+)$", CONTAINERFILE, re.MULTILINE))
    assert defaults == {"PYTHON_IMAGE": IMAGES["PYTHON_IMAGE"]}


def test_compose_file_names_no_image_but_those_in_the_list() -> None:
    used = re.findall(r"^\s*(?:image|PYTHON_IMAGE): (\S+)$", COMPOSE, re.MULTILINE)
    named = [re.fullmatch(r"\$\{([A-Z]+_IMAGE):-(\S+)\}", image) for image in used]
    assert None not in named, used
    assert {found[1]: found[2] for found in named if found} == IMAGES | OURS
