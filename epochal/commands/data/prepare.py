"""`epochal prepare`: from text to a folder from which a run starts."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import local_path
from epochal.cli.output.printing import say
from epochal.runtime.long_work import BYTES, long_work
from epochal.state.config.state_file import parse_state
from epochal.state.errors import EpochalError
from epochal.state.text.amounts import counted
from epochal.tools.init.next_commands import next_commands
from epochal.tools.prepare import pipeline
from epochal.tools.prepare.pipeline import PrepareProgress
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.publishing import TRAIN, VALIDATION, Preparation
from epochal.tools.prepare.work_folder import discard_unfinished

FEW_SAMPLES = 32
"""Of fewer samples that are held out, the loss is called rough."""
FAR_SHARE = 2
"""So many times more or less than the share that was asked for is named: whole documents are held out."""
NAMED_SHOWN = 10


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="Files and folders of text, JSON lines and parquet, by path, URL, bucket (s3://bucket/folder) or name "
            "(hf://datasets/NAME); files also as .gz and .zst.",
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME|bytes",
            help="`bytes` (for the embedded model), a tokenizer.json or its folder, or a name on the Hugging Face Hub.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", parser=local_path, help="Folder to write: new, empty, or of the same preparation."),
    ],
    options: PrepareOptions,
    text_suffix: Annotated[
        list[str] | None, typer.Option(metavar=".SUFFIX", help="Read such files as text too; repeat for several.")
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Discard an unfinished preparation in the folder and start over; a complete one stays."
        ),
    ] = False,
) -> None:
    """Turn text into shards of tokens, and write the files of a run that trains on them.

    The same command continues where an interrupted one stopped. The result is the same bytes whatever --workers is.
    """
    options = replace(options, text_suffixes=tuple(text_suffix or ()))
    if restart:
        discard_unfinished(out)
    try:
        with _shown() as show:
            made = pipeline.prepare(sources, tokenizer, out, options, show)
    except KeyboardInterrupt:
        raise EpochalError("interrupted; the same command resumes where this one stopped") from None
    _report(made)


@contextmanager
def _shown() -> Iterator[Callable[[PrepareProgress], None]]:
    """Yield what shows the progress, with an estimate of the time that is left."""
    with long_work("reading", None, BYTES) as work:

        def show(progress: PrepareProgress) -> None:
            work.title = f"{counted(progress.documents, 'document')}, {counted(progress.tokens, 'token')}"
            if progress.packed:
                work.title += f", {progress.packed:,} packed"
            work.total = progress.total_bytes
            work.reach(progress.read_bytes)

        yield show


def _report(made: Preparation) -> None:
    """Print what was made, what was left out, and what to do next."""
    counts = made.counts
    if made.was_complete:
        say(f"{made.folder} holds this preparation already, complete: nothing was done. It is:")
    for split in (TRAIN, VALIDATION):
        shards = made.shards.get(split, {})
        if shards:
            held = f"{counted(counts[f'{split}_documents'], 'document')}, {counted(made.tokens(split), 'token')}"
            samples = f"{counted(made.samples(split), 'sample')} of {made.seq_len}"
            files = counted(len(shards), "file" if made.is_chat else "shard")
            say(f"{made.folder / split}: {held} in {files}: {samples}")
    for name, what in (
        ("duplicates", "repeats, dropped"),
        ("empty", "documents without text, left out"),
        ("bad", "bad documents or files, skipped"),
        ("truncated", "conversations longer than a row, truncated"),
        ("split", "conversations longer than a row, split"),
        ("dropped", "conversations longer than a row, dropped"),
        ("not_read", "files with another suffix, not read (--text-suffix)"),
    ):
        if counts.get(name):
            say(f"{what}: {counts[name]:,}")
    for message in counts["named"][:NAMED_SHOWN]:
        say(f"  {message}")
    if made.content["validation"] != "0" and not made.samples(VALIDATION):
        say("too few documents were held out for one sample: there is no validation.toml; a larger --validation")
    elif doubt := doubtful_validation(made):
        say(doubt)
    for name in made.left:
        say(f"{made.folder / name} is yours and was left as it is: does it fit these data?")
    _say_next(made)


def doubtful_validation(made: Preparation) -> str:
    """Return what is wrong with what was held out: few samples, or a share far from what was asked for; else ""."""
    held, samples, asked = (
        made.tokens(VALIDATION),
        made.samples(VALIDATION),
        float(Fraction(made.content["validation"])),
    )
    share = held / (held + made.tokens(TRAIN)) if held else 0.0
    if not samples or (samples >= FEW_SAMPLES and asked / FAR_SHARE <= share <= asked * FAR_SHARE):
        return ""
    why = "the loss on them is rough" if samples < FEW_SAMPLES or share < asked else "so much less is trained on"
    held_out = f"{counted(samples, 'sample')}, {share:.1%} of the tokens"
    return f"held out: {held_out} (--validation asks for {asked:.1%} of the documents): {why}"


def _say_next(made: Preparation) -> None:
    """Print the commands that start the run; if the user's own state file is wrong, the one that reports it."""
    path, data = made.folder / "state.toml", None if made.is_chat else made.folder / "data.toml"
    say("next:")
    try:
        state = parse_state(path.read_text(encoding="utf-8"), str(path))
    except (EpochalError, ValueError):
        say(f"  epochal check {shlex.quote(str(path))}")
        return
    check, coordinator, client = next_commands(state, path, data)
    say(f"  {check}\n  {coordinator}\n  {client}    # in another terminal")
    if made.samples(VALIDATION):
        held_out = (
            "--split validation" if made.is_chat else f"--data {shlex.quote(str(made.folder / 'validation.toml'))}"
        )
        say(f"  epochal evaluate {shlex.quote(f'runs/{state.run_id}')} {held_out}")
