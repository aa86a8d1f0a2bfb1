"""The server of forked processes: it imports the commands before it forks, once for all of a worker's tests."""

from epochal.cli.main import COMMANDS_OF, PANELS
from tests.support.drive.fork_server import command_modules

GROUPS = (*PANELS.values(), *COMMANDS_OF.values())


def test_server_imports_the_module_of_every_command() -> None:
    needed = {f"epochal.commands.{target.partition(':')[0]}" for group in GROUPS for target in group}
    assert needed - set(command_modules()) == set()
