"""Manifests name the whole content of each file, and may say more than a reader knows."""

import hashlib
import json
from pathlib import Path

from epochal.data_providers.sources.manifest import MANIFEST_NAME, manifest_text, parse_manifest
from epochal.data_providers.sources.renewed_manifest import write_manifest


def test_a_manifest_names_the_sha256_of_each_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 33)
    write_manifest(tmp_path, ["a.bin"], 4096)
    entry = json.loads((tmp_path / MANIFEST_NAME).read_text())["files"]["a.bin"]
    assert entry["sha256"] == hashlib.sha256((tmp_path / "a.bin").read_bytes()).hexdigest()


def test_fields_that_a_reader_does_not_know_are_ignored(tmp_path: Path) -> None:
    files = {"a.bin": {"size_bytes": 0, "sha256": "0" * 64, "hashes": "", "tokens": 0}}
    assert parse_manifest(manifest_text(files, more={"preparation": {}}).encode(), "m")["a.bin"].size_bytes == 0
