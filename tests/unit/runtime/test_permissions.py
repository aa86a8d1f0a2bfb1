"""What the documents of a run may use of a machine."""

from pathlib import Path

import pytest

from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.errors import NotAllowed


def test_path_below_an_allowed_folder_is_resolved(tmp_path: Path) -> None:
    allowed = Permissions.of_volunteer(folders=[tmp_path / "data"])
    (tmp_path / "data").mkdir()
    assert allowed.checked_path(tmp_path / "data" / "x" / ".." / "y") == (tmp_path / "data" / "y").resolve()


@pytest.mark.parametrize("place", ["data/../secret", "data/link", "data-2/file", "/etc/passwd"])
def test_path_that_leads_out_of_the_folders_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(NotAllowed, match="--allow-local"):
        Permissions.of_volunteer(folders=[tmp_path / "data"]).checked_path(tmp_path / place)


def test_nothing_is_allowed_by_default() -> None:
    default = Permissions.of_volunteer()
    assert not default.lends_credentials("example.org")
    with pytest.raises(NotAllowed):
        default.checked_path(Path("/etc/passwd"))
    with pytest.raises(NotAllowed, match="--allow-package encoders"):
        default.check_package("encoders", "packing.task_encoder")


def test_named_host_gets_credentials_whatever_its_case() -> None:
    assert Permissions.of_volunteer(credential_hosts=["S3.example"]).lends_credentials("s3.EXAMPLE")


def test_owner_may_use_everything() -> None:
    assert OWNERS.checked_path(Path("x/../y")) == Path("x/../y")
    assert OWNERS.lends_credentials("any")
    OWNERS.check_package("any", "an option")
