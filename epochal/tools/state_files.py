"""Reading the files that a person wrote, with errors that name them."""

from pathlib import Path

from epochal.state.config.data_file import DataConfig, parse_data_config
from epochal.state.config.model_table import Architecture
from epochal.state.config.state_file import StateFile, dump_state, parse_state
from epochal.state.config.support import ensure_supported
from epochal.state.config.verify_table import MAX_BF16_STEPS
from epochal.state.errors import InvalidConfig, InvalidInput, Mistake, Unsupported
from epochal.trainers.architectures import ARCHITECTURES

MAX_CONFIG_BYTES = 1024 * 1024


def read_text(path: Path) -> str:
    """Return the text of a small file.

    Raises:
        InvalidInput: the file is missing, unreadable, too large or not UTF-8; the user's fault.
    """
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InvalidInput(f"{path}: larger than {MAX_CONFIG_BYTES} bytes, the maximum", path=str(path))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidConfig(str(path), (Mistake("", f"not UTF-8 at byte {error.start}", "text in UTF-8"),)) from error


def unpinned_data(state: StateFile) -> str | None:
    """Return the warning that strangers can decide which data are the run's; None if its state file leaves no doubt."""
    if state.access.mode != "open" or state.config.data_fingerprint is not None:
        return None
    return (
        "everybody may join this run, and config.data_fingerprint does not say which data are its own: until a round "
        "is applied, members decide, strangers among them. `epochal data inspect` shows the fingerprint; write it into "
        "the state file, or pin it while the run goes on: `epochal fingerprint URL FINGERPRINT`"
    )


def early_drops(state: StateFile) -> str | None:
    """Return the warning that results cannot be computed again for as long as `[verify]` waits; None if they can.

    A result can be computed again as long as a checkpoint before it is kept, of which there are two.
    """
    every, verify = state.config.checkpoint_every, state.verify
    if verify is None or not 0 < every < verify.within:
        return None
    return (
        f"config.checkpoint_every is {every}, verify.within is {verify.within}: verifiers have {every} to {2 * every} "
        f"rounds for a result, as the replica before it is gone then; write `checkpoint_every = {verify.within}`, or "
        f"more, or `within = {every}`"
    )


def long_rounds(state: StateFile) -> str | None:
    """Return the warning that verifiers find little in bf16, as the rounds are long for it; None if they are not."""
    most = max(state.at(step).merge.local_steps for step in (0, *(change.at_step for change in state.changes)))
    if not state.is_replayed or most <= MAX_BF16_STEPS or state.model.LLM.architecture is Architecture.EPOCHAL_NGRAM:
        return None
    return (
        f"merge.local_steps is {most}: honest results of members in bf16 may lie 0.1 and more from their replays, and "
        f"false ones that lie as near are not found; write `local_steps = {MAX_BF16_STEPS}`, or fewer, or let members "
        "use --precision float32"
    )


def read_state(path: Path) -> StateFile:
    """Return the validated state file. Raise `InvalidInput` with every mistake."""
    return parse_state(read_text(path), str(path))


def read_supported_state(path: Path) -> StateFile:
    """Return the validated state file. Raise `InvalidInput`, or `Unsupported` for what is not supported yet."""
    state = read_state(path)
    ensure_supported(state, str(path), ARCHITECTURES)
    return state


def is_accepted(state: StateFile) -> bool:
    """Return whether a state file with these values is one that `epochal check` takes and a coordinator starts."""
    try:
        ensure_supported(parse_state(dump_state(state), ""), "", ARCHITECTURES)
    except (InvalidConfig, Unsupported):
        return False
    return True


def read_data_config(path: Path) -> DataConfig:
    """Return the validated data file. Raise `InvalidInput` with every mistake."""
    return parse_data_config(read_text(path), str(path))
