"""`epochal check`: find every mistake in the files, and in what they name, before anything starts."""

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.options.notified import missing_variables
from epochal.cli.options.shared import local_path
from epochal.cli.output.printing import run_to_end
from epochal.state.config.data_file import DataConfig, check_together
from epochal.state.config.state_file import StateFile
from epochal.state.config.support import ensure_supported
from epochal.state.errors import InvalidInput, Unsupported
from epochal.tools.state_files import early_drops, long_rounds, read_data_config, read_state, unpinned_data
from epochal.trainers.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from epochal.tools.run_inputs import NamedFiles

MODEST_LINE = (12_500_000, 12_500_000)
"""Bytes a second to and from the clients for which a file is checked."""
MODEST_ROUND_TRIP_S = 0.04
HINT = "--no-files leaves out the data, checkpoint and task encoder that the files name"


def check(
    state_path: Annotated[Path, typer.Argument(metavar="STATE.toml", help="State file of a run.")],
    data_config: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA.toml",
            parser=local_path,
            help="Also check this file of a data server, and whether it fits the run.",
        ),
    ] = None,
    network: Annotated[
        bool, typer.Option("--network", help="Also open data behind URLs and in buckets, not only on this machine.")
    ] = False,
    no_files: Annotated[
        bool, typer.Option("--no-files", help="Do not open what the files name: data, checkpoint, task encoder.")
    ] = False,
) -> None:
    """Check a state file, a data file, and what they name. Every mistake is reported at once (exit code 2).

    Data on this machine are opened as a start would, and some of them are read: the run's model must know their tokens.
    It says how large the model is, and which limits of the file must be raised for it.
    """
    checked = _Checked()
    checked.read_state_file(state_path)
    if data_config is not None:
        checked.read_data_file(data_config)
    count = len(checked.problems)
    if not no_files:
        checked.open_files(network)
    checked.note_unpinned_data()
    checked.note_hard_replays()
    checked.note_costly_delay()
    checked.note_tight_timers()
    for fact in checked.facts:
        typer.echo(fact)
    for note in checked.notes:
        typer.echo(f"note: {note}", err=True)
    if checked.problems or checked.own:
        of_files = checked.problems[count:]
        lines = [*checked.problems[:count], *checked.own, *of_files, *([f"({HINT})"] if of_files else [])]
        typer.echo("\n".join([*lines, "see: epochal explain invalid-config"]), err=True)
        raise typer.Exit(2)
    typer.echo(f"{state_path} is valid" + (f", and {data_config} fits it" if data_config else ""))


class _Checked:
    """The files as far as they are valid, and everything that was found."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.own: list[str] = []
        self.notes: list[str] = []
        self.facts: list[str] = []
        self._state: tuple[StateFile, Path] | None = None
        self._data: tuple[DataConfig, Path] | None = None
        self._data_named = False
        self._fingerprint: str | None = None

    def read_state_file(self, path: Path) -> None:
        try:
            state = read_state(path)
            self._state = state, path
            ensure_supported(state, str(path), ARCHITECTURES)
        except (InvalidInput, Unsupported) as error:
            self.problems.append(str(error))
            return
        self.notes += [
            f"{path}: [notify] names the variable {name}, which is not set here; the coordinator needs it"
            for name in missing_variables(state)
        ]

    def read_data_file(self, path: Path) -> None:
        self._data_named = True
        try:
            config = read_data_config(path)
            self._data = config, path
            if self._state is not None:
                check_together(self._state[0], str(self._state[1]), config, str(path))
        except InvalidInput as error:
            self.problems.append(str(error))

    def open_files(self, network: bool) -> None:
        # numpy and every provider, which no file with a mistake has to wait for
        from epochal.tools.run_inputs import open_what_data_file_names, open_what_state_names

        async def opened() -> None:
            state, path = self._state or (None, None)
            if state is not None:
                self._take(await open_what_state_names(state, str(path), with_network=network))
            if self._data_named:
                self.notes = [note for note in self.notes if "--data-config" not in note]
            if self._data is not None:
                self._take(await open_what_data_file_names(*self._data, state))

        run_to_end(opened())

    def note_unpinned_data(self) -> None:
        """Note that strangers can decide which data are the run's, with the line that prevents it if it is known."""
        if self._state is None or (warning := unpinned_data(self._state[0])) is None:
            return
        line = "" if self._fingerprint is None else f'. These have `data_fingerprint = "{self._fingerprint}"`'
        self.notes.append(f"{self._state[1]}: {warning}{line}")

    def note_hard_replays(self) -> None:
        """Note that verifiers have less time than the file says, or find less than they could."""
        if self._state is not None:
            state, path = self._state
            self.notes += [f"{path}: {warning}" for warning in (early_drops(state), long_rounds(state)) if warning]

    def note_costly_delay(self) -> None:
        """Note that training ahead loses more than it has to."""
        from epochal.tools.quality import costly_delay

        if self._state is not None and (warning := costly_delay(self._state[0])) is not None:
            self.notes.append(f"{self._state[1]}: {warning}")

    def note_tight_timers(self) -> None:
        """Note which timers cannot hold with modest lines, and training that takes no time.

        A model that is not known here is reported elsewhere.
        """
        if self._state is None or self._state[0].model.LLM.spec.dummy:
            return
        from epochal.state.round_model import ClientGroup, Link
        from epochal.tools.plan.plans import PlanOptions
        from epochal.tools.plan.sizes import round_model
        from epochal.tools.plan.timers import timer_notes

        state, path = self._state
        with contextlib.suppress(InvalidInput, Unsupported):
            clients = [ClientGroup(state.config.init_min_clients, Link(*MODEST_LINE), MODEST_ROUND_TRIP_S, math.inf)]
            notes = timer_notes(state, round_model(state, clients, PlanOptions()), clients)
            self.notes += [f"{path}: {note.text}" for note in notes]

    def _take(self, found: "NamedFiles") -> None:
        self._fingerprint = found.fingerprint or self._fingerprint
        self.problems += found.problems
        self.own += found.own
        self.notes += found.notes
        self.facts += found.facts
