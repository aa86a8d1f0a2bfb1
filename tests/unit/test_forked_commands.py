"""The server of forked processes: it imports the commands before it forks, once for all of a worker's tests."""

from epochal.cli.main import (
    ACCESS_COMMANDS,
    COMMANDS,
    DATA_COMMANDS,
    KEY_COMMANDS,
    QUARANTINE_COMMANDS,
    TOKEN_COMMANDS,
)
from tests.support.drive.fork_server import command_modules

GROUPS = (COMMANDS, DATA_COMMANDS, QUARANTINE_COMMANDS, KEY_COMMANDS, ACCESS_COMMANDS, TOKEN_COMMANDS)


def test_server_imports_the_module_of_every_command() -> None:
    needed = {f"epochal.commands.{target.partition(':')[0]}" for group in GROUPS for target in group}
    assert needed - set(command_modules()) == set()
