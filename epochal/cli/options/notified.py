"""The addresses that a state file notifies, with the secrets that the environment holds."""

import os

from epochal.cli.options.secret_files import FILE_SUFFIX, take_secret_files
from epochal.coordinator.notify.addresses import Address, addresses_of, variables_of
from epochal.state.config.state_file import StateFile


def notified_of(state: StateFile) -> tuple[Address, ...]:
    """Return the addresses that the coordinator of a run notifies.

    Raises:
        InvalidInput: a variable that the file names is not set, the file that `NAME_FILE` names cannot be read, or
            an address is wrong.
        ExtraMissing: apprise is needed, and not installed.
    """
    take_secret_files(os.environ, variables_of(state.notify))
    return addresses_of(state.notify, os.environ)


def missing_variables(state: StateFile) -> list[str]:
    """Return the environment variables that a state file's addresses name and that are not set here."""
    names = dict.fromkeys(variables_of(state.notify))
    return [name for name in names if not os.environ.get(name) and not os.environ.get(name + FILE_SUFFIX)]
