"""The state file of `epochal up`: `demo_state.toml`, fitted to what was asked for."""

from importlib.resources import files

from state.config import StateFile, parse_state
from state.data_location import Server

SOURCE = "demo_state.toml"


def demo_state(*, data_server: str, total_steps: int | None = None, client_count: int = 3) -> StateFile:
    """The demo's state file.

    Args:
        data_server: `host:port` of the TCP data server.
        total_steps: rounds to train; None for the file's own number.
        client_count: how many clients start; the run begins with two thirds of them, and goes on with one.
    """
    text = (files("epochal") / SOURCE).read_text(encoding="utf-8")
    state = parse_state(text, SOURCE)
    steps = state.config.total_steps if total_steps is None else total_steps
    gathered = max(1, client_count * 2 // 3)
    config = state.config.model_copy(update={"total_steps": steps, "init_min_clients": gathered})
    model = state.model.LLM.model_copy(update={"data_location": Server(data_server)})
    return state.model_copy(update={"config": config, "model": state.model.model_copy(update={"LLM": model})})
