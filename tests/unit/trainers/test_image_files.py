"""Images that samples name by their locations: read in the folder of the machine's owner, and nowhere else."""

from pathlib import Path

import pytest

from epochal.batching.chunking.datums import ImageAssetPointerChunk, ImageFormat
from epochal.state.errors import TrainerFailed
from epochal.state.reader_limits import MAX_IMAGE_BYTES
from epochal.trainers.image_files import read_image
from tests.support.data.image_samples import JPEG, PNG


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of images, beside a file that is not in it."""
    found = tmp_path / "images"
    (found / "more").mkdir(parents=True)
    (found / "a.png").write_bytes(PNG + b"a")
    (found / "more" / "b.jpg").write_bytes(JPEG + b"b")
    (found / "large.png").write_bytes(PNG.ljust(MAX_IMAGE_BYTES + 1))
    (tmp_path / "secret.png").write_bytes(PNG)
    (found / "link.png").symlink_to(tmp_path / "secret.png")
    (found / "inner.png").symlink_to(found / "a.png")
    (found / "loop.png").symlink_to(found / "loop.png")
    return found


@pytest.mark.parametrize(
    ("location", "form", "content"),
    [("a.png", "png", PNG + b"a"), ("more/b.jpg", "jpeg", JPEG + b"b"), ("inner.png", "png", PNG + b"a")],
)
def test_file_below_the_folder_is_read(folder: Path, location: str, form: ImageFormat, content: bytes) -> None:
    assert read_image(ImageAssetPointerChunk(location, form), folder) == content


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("https://host/a.png", "is not on this machine; allowed: a path below --assets"),
        ("link.png", "secret.png; allowed: files below --assets"),
        ("../secret.png", "secret.png; allowed: files below --assets"),
        ("none.png", "there is no file "),
        ("more", "there is no file "),
        ("n" * 300, "File name too long"),
        ("loop.png", "'loop.png': "),  # the words depend on the version of Python
        ("large.png", f"has more than {MAX_IMAGE_BYTES} bytes"),
        ("more/b.jpg", "is no png; allowed: a file that begins as png does"),
    ],
)
def test_other_locations_are_refused_by_name(folder: Path, location: str, message: str) -> None:
    with pytest.raises(TrainerFailed) as caught:
        read_image(ImageAssetPointerChunk(location), folder)
    assert caught.value.message.startswith(f"the image at '{location}'")
    assert message in caught.value.message


def test_without_a_folder_nothing_is_read() -> None:
    with pytest.raises(TrainerFailed, match="a path on this machine; allowed: --assets DIR, the folder that holds it"):
        read_image(ImageAssetPointerChunk("a.png"), None)
