"""Secrets in files: where a variable may hold a secret, the variable `NAME_FILE` may name a file that holds it instead.

Service managers and container engines hand secrets to a process as files, which no listing of its arguments or of its
environment shows. The names are those that the commands, libpq and the object stores' clients read.
"""

from collections.abc import Iterable, MutableMapping
from pathlib import Path

from epochal.cli.options.admin_token import ADMIN_TOKEN_VARIABLE
from epochal.cli.options.shared import (
    CHECKER_TOKEN_VARIABLE,
    DATA_SERVER_TOKEN_VARIABLE,
    STORE_VARIABLE,
    TRAINER_TOKEN_VARIABLE,
    VERIFIER_TOKEN_VARIABLE,
)
from epochal.state.errors import InvalidInput

SECRET_VARIABLES = (
    STORE_VARIABLE,
    ADMIN_TOKEN_VARIABLE,
    CHECKER_TOKEN_VARIABLE,
    DATA_SERVER_TOKEN_VARIABLE,
    TRAINER_TOKEN_VARIABLE,
    VERIFIER_TOKEN_VARIABLE,
    "PGPASSWORD",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "HF_TOKEN",
)
"""Variables whose value may lie in the file that `NAME_FILE` names."""
FILE_SUFFIX = "_FILE"
MAX_SECRET_BYTES = 64 * 1024


def take_secret_files(environment: MutableMapping[str, str], names: Iterable[str] = SECRET_VARIABLES) -> None:
    """Replace each `NAME_FILE` of the environment by the variable with what its file holds, without its last newline.

    Args:
        environment: the process's own, where libraries see the values. An empty `NAME_FILE` counts for nothing.
        names: the variables.

    Raises:
        InvalidInput: a file cannot be read, holds no secret, or the variable is set, too.
    """
    for name in names:
        file_name = name + FILE_SUFFIX
        path = environment.get(file_name)
        if not path:
            continue
        if environment.get(name):
            raise InvalidInput(f"{name} and {file_name} are both set; allowed: one of them")
        environment[name] = _secret_in(Path(path), f"{file_name}={path}")
        del environment[file_name]


def _secret_in(path: Path, place: str) -> str:
    """Return the one line that a file holds; `place` names it in errors."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{place}: the file cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidInput(f"{place}: this is no file's name: {error}") from error
    allowed = f"allowed: one line of UTF-8 text, at most {MAX_SECRET_BYTES} bytes"
    if len(content) > MAX_SECRET_BYTES:
        raise InvalidInput(f"{place}: the file is longer; {allowed}")
    try:
        secret = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInput(f"{place}: the file is no text; {allowed}") from None
    if not secret.strip() or any(sign in secret for sign in "\0\r\n"):
        found = "several lines, or a NUL" if secret.strip() else "nothing"
        raise InvalidInput(f"{place}: the file holds {found}; {allowed}")
    return secret
