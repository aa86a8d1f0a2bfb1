"""The state file of `epochal up`: `demo_state.toml`, with the options of the command."""

from importlib.resources import files

import tomli
import tomli_w

from state.config.state_file import StateFile, parse_state

SOURCE = "demo_state.toml"


def demo_state(*, data_server: str, total_steps: int | None = None, client_count: int = 3) -> StateFile:
    """Return the demo's state file, validated like any other.

    Args:
        data_server: `host:port` of the TCP data server.
        total_steps: rounds to train; None for the file's own number.
        client_count: how many clients start; the run begins with two thirds of them, and goes on with one.

    Raises:
        InvalidInput: with these values the file would not be valid; the caller's fault.
    """
    tables = tomli.loads((files("epochal.testnet") / SOURCE).read_text(encoding="utf-8"))
    if total_steps is not None:
        tables["config"]["total_steps"] = total_steps
    tables["config"]["init_min_clients"] = max(1, client_count * 2 // 3)
    tables["model"]["LLM"]["data_location"] = {"Server": data_server}
    return parse_state(tomli_w.dumps(tables), SOURCE)
