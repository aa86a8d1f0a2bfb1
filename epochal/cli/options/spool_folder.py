"""The folder of a client's temporary files: `--spool`."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from epochal.state.errors import InvalidInput

PREFERRED_FOLDER = Path("/var/tmp")
"""On a disk, where /tmp is often memory."""

SpoolOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder on a disk that holds the model twice and a result of each client: temporary files that are removed"
        " in the end. Default: /var/tmp, or where the system keeps temporary files.",
    ),
]


def checked_spool_folder(chosen: Path | None) -> Path:
    """Return the folder in which a client makes that of its spool.

    Args:
        chosen: as `--spool` says; it is made if it does not exist.

    Raises:
        InvalidInput: files cannot be made there; the user's fault.
    """
    if chosen is None:
        preferred = PREFERRED_FOLDER
        return preferred if preferred.is_dir() and os.access(preferred, os.W_OK) else Path(tempfile.gettempdir())
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=chosen):
            return chosen
    except OSError as error:
        raise InvalidInput(f"--spool {chosen}: {error.strerror or error}", path=str(chosen)) from error
