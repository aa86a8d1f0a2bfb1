"""`epochal data pack`: pack samples of different lengths into rows, to see how full the rows are or to save them.

The rows are saved as parquet files, which a run reads as preprocessed samples. After each file, the packer's state is
saved beside it, so that an interrupted command continues after the last complete file and makes the same rows.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from epochal.batching.packing.packer import Packer, PackingCounts, indices_held
from epochal.batching.packing.samples import RawSample, raw_samples
from epochal.batching.packing.task_encoder import EncoderContext, TaskEncoder, open_encoder
from epochal.cli.options.shared import JsonOption
from epochal.cli.output.logs import LogFormat, start_logging
from epochal.cli.output.printing import run_to_end, say
from epochal.data_providers.file_names import PARQUET_SUFFIX
from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import DataProvider, DatasetSpec, TokenBatch
from epochal.runtime.files.durable_files import replace_file
from epochal.runtime.long_work import LongWork, long_work
from epochal.runtime.permissions import OWNERS
from epochal.state.config.schema import known_places
from epochal.state.config.state_file import PackingConfig
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds, coalesce
from epochal.tools.row_files import part_name, write_rows

STATE_NAME = "packing.json"
SAMPLES_PER_REQUEST = 256
PART_ROWS = 4096
"""Rows of one file: the most that an interruption loses."""


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of packing. `fill` is the share of the rows' tokens that belong to samples."""

    location: str
    split: str
    row_tokens: int
    fill: float
    counts: PackingCounts
    parts: int


def pack(
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="JSON lines file, parquet file, or a folder of them.")
    ],
    seq_len: Annotated[int, typer.Option(min=1, help="Number of tokens in a row.")] = 2048,
    method: Annotated[
        Literal["rolling", "first_fit_decreasing", "best_fit_decreasing", "padded", "encoder"],
        typer.Option(help="How samples are chosen for a row."),
    ] = "rolling",
    pool_size: Annotated[int, typer.Option(min=1, help="Number of samples that a row is chosen from.")] = 256,
    oversized: Annotated[
        Literal["error", "truncate", "split", "drop"],
        typer.Option(help="What to do with a sample that is longer than a row."),
    ] = "error",
    task_encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Task encoder that turns records into tokens: its entry point, or module:Class."
        ),
    ] = None,
    max_failed_samples: Annotated[int, typer.Option(min=0, help="Number of samples that may fail in the encoder.")] = 0,
    split: Annotated[str, typer.Option(help="Split of a folder.")] = "train",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save the rows here as parquet files. An interrupted command continues."),
    ] = None,
    run_id: Annotated[
        str, typer.Option(help="Id of the run whose random numbers the task encoder draws.")
    ] = "epochal data pack",
    as_json: JsonOption = False,
) -> None:
    """Pack each sample of a location once; show how full the rows are, and save them with --out."""
    start_logging(LogFormat.TEXT, verbose=False)
    context = EncoderContext(run_id, seq_len, None, "train" if split == "train" else "validation")
    try:
        config = PackingConfig(
            method=method,
            pool_size=pool_size,
            oversized=oversized,
            max_failed_samples=max_failed_samples,
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = str(wrong["loc"][0])
        allowed = known_places(PackingConfig).at((name,)).allowed.replace("no such line", "no such option")
        raise InvalidInput(f"--{name.replace('_', '-')} {wrong['input']!r}; allowed: {allowed}") from error

    async def main() -> None:
        options = OpenOptions("", None, OWNERS, packs=True, split=split)
        opening = open_location(parse_location(location), DatasetSpec(2, seq_len), options)
        async with contextlib.aclosing(await opening) as provider:
            job = _PackingJob(provider, config, partial(open_encoder, task_encoder, context, OWNERS), out)
            with long_work("packing", provider.sequence_count, "samples") as work:
                await job.run(work)
        counts = job.packer.counts
        fill = counts.tokens / (counts.rows * seq_len) if counts.rows else 0.0
        report = PackReport(location, split, seq_len, fill, counts, job.parts)
        if as_json:
            say(json.dumps(asdict(report)))
        else:
            _show(report)

    run_to_end(main())


class _PackingJob:
    """One pass over a provider's samples; the rows are written into the folder `out` unless it is None."""

    def __init__(
        self, provider: DataProvider, config: PackingConfig, new_encoder: Callable[[], TaskEncoder], out: Path | None
    ) -> None:
        if provider.sequence_count is None:
            raise InvalidInput("these data have no end, so they cannot be packed once")
        self.parts = 0
        self.packer = Packer(config, new_encoder())
        self._total = provider.sequence_count
        self._provider = provider
        self._config = config
        self._new_encoder = new_encoder
        self._out = out

    async def run(self, work: LongWork) -> None:
        if self._out is not None:
            with _writing(self._out):
                self._out.mkdir(parents=True, exist_ok=True)
            await self._resume(self._out)
        rows: list[TokenBatch] = []
        arrived: Iterator[RawSample] = iter(())
        taken = self.packer.counts.samples
        while True:
            is_full = self.packer.take(arrived)
            row = self.packer.next_row()
            if row is not None:
                rows += [row] if row.sample_count else []
                if len(rows) == PART_ROWS:
                    await self._write(rows)
                    rows = []
            elif is_full:
                break
            elif taken == self._total:
                self.packer.finish()
            else:
                ids = DataIds(taken, min(taken + SAMPLES_PER_REQUEST, self._total) - 1)
                arrived = await self._samples(ids)
                taken = ids.end + 1
                work.reach(taken)
        await self._write(rows)

    async def _samples(self, ids: DataIds) -> Iterator[RawSample]:
        return raw_samples(await self._provider.get_samples(ids), iter(ids))

    async def _resume(self, out: Path) -> None:
        path = out / STATE_NAME
        names = await asyncio.to_thread(os.listdir, out)
        if STATE_NAME not in names:
            if any(name.endswith(PARQUET_SUFFIX) for name in names):
                raise InvalidInput(f"{out} holds parquet files, but no {STATE_NAME} of a packing to continue")
            with _writing(out):
                await self._save(out)  # from now on, parts in this folder are known to be of this packing
            return
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            fingerprint, parts, state = saved["fingerprint"], int(saved["parts"]), saved["packer"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path} is not the state of a packing: {error}", path=str(path)) from error
        if not parts:
            return  # no rows were written that another configuration could contradict
        missing = [name for name in map(part_name, range(parts)) if name not in names]
        if missing:
            raise InvalidInput(f"{out} lacks {missing[0]}, which was written before; pack into another folder")
        if fingerprint != self._provider.fingerprint:
            raise InvalidInput(f"{path} is of other data: {fingerprint}, not {self._provider.fingerprint}")
        held = coalesce([DataIds(index, index) for index in indices_held(state)])
        samples = [raw for ids in held for raw in await self._samples(ids)]
        self.packer = Packer.restored(self._config, self._new_encoder(), state, samples)
        self.parts = parts

    async def _write(self, rows: Sequence[TokenBatch]) -> None:
        """Write a part, then count it in the saved state; a part that is not counted there is written again."""
        if self._out is None or not rows:
            return
        with _writing(self._out):
            await asyncio.to_thread(write_rows, self._out / part_name(self.parts), rows)
            self.parts += 1
            await self._save(self._out)

    async def _save(self, out: Path) -> None:
        saved = {"fingerprint": self._provider.fingerprint, "parts": self.parts, "packer": self.packer.state()}
        await asyncio.to_thread(replace_file, out / STATE_NAME, json.dumps(saved).encode())


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"--out {out} cannot be written: {error.strerror or error}", path=str(out)) from error


def _show(report: PackReport) -> None:
    table = Table(title=f"{report.location} · {report.split}, rows of {report.row_tokens:,}", show_header=False)
    for name, value in {"fill": f"{report.fill:.2%}", **asdict(report.counts)}.items():
        if value or name in ("samples", "rows"):
            table.add_row(name, value if isinstance(value, str) else f"{value:,}")
    Console().print(table)
