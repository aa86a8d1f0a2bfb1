"""The commands that start a new run, as `epochal init` and `epochal prepare` print them below what they wrote."""

import shlex
from pathlib import Path

from epochal.cli.options.shared import RUNS_FOLDER
from epochal.state.config.data_location import Server
from epochal.state.config.state_file import StateFile
from epochal.state.shown.join_guide import data_of, trainer_named

THIS_MACHINE = "127.0.0.1"
PORT = 8000
"""The port of a coordinator without `--port`."""
CALIBRATED = 4
"""Pieces of work by which a new run's verifier calibrates."""


def next_commands(
    state: StateFile, state_path: Path, data_path: Path | None, invitation: str | None = None
) -> list[str]:
    """Return the commands that check a run, start it, and join it; and those of its verifier if it has a `[verify]`.

    Where the data server's address is another machine's, the coordinator listens for other machines, too, and clients
    are told its host: over TLS if the data server has a certificate.

    Args:
        state: the run's state file.
        state_path, data_path: the run's files, of which the second is None without a data server.
        invitation: the code with which a client joins; None without one.
    """
    location = state.model.LLM.data_location
    data, _ = data_of(location)
    is_away = data.kind == "server" and not data.loopback
    host = data.places[0].rpartition(":")[0] if is_away else THIS_MACHINE
    files = [str(state_path), *(() if data_path is None else ("--data-config", str(data_path)))]
    trainer = trainer_named(state.model.LLM.spec)
    listening, scheme, joining = [], "http", []
    if is_away:
        listening = ["--host", "0.0.0.0", "--insecure"] if data.insecure else []
        joining = ["--insecure"] if data.insecure else []
        if not data.insecure:
            listening, scheme = ["--host", "0.0.0.0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"], "https"
    elif isinstance(location, Server) and location.tls:  # of a certificate that this machine has made for itself
        listening, scheme, host = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"], "https", location.addresses[0][0]
        joining = ["--tls-ca", "cert.pem"]
    joining += ["--trainer", trainer] if trainer != "numpy" else []
    if data.own:  # a mix is beside the files that it names
        place = Path(data.places[0])
        joining += ["--allow-local", str(place.parent if data.kind == "mixture" else place)]
    joining += ["--invitation", invitation] if invitation else []
    url = f"{scheme}://{host}:{PORT}"
    commands: list[tuple[str, ...]] = [
        ("check", *files),
        ("coordinator", *files, *listening),
        ("client", url, "--key", "me.key", "--new-key", *joining),
    ]
    if state.verify is not None:
        own_data = () if data_path is None else ("--data", str(data_path))
        commands += [
            ("token", "verifier", str(RUNS_FOLDER / state.run_id)),
            ("verifier", url, "--trainer", trainer, "--calibrate", str(CALIBRATED), *own_data),
        ]
    return [shlex.join(("epochal", *words)) for words in commands]
