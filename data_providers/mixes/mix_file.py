"""Parses the file of a mix: a JSON list of locations with weights, or an object of sources and a schedule.

```
[{"location": LOCATION, "weight": 3}, …]

{"sources": [{"name": "en", "location": LOCATION}, …],
 "schedule": [{"from": 0, "weights": {"en": 3, "de": 1}}, {"from": 2000000, "weights": {"de": 1}}]}
```

LOCATION is a `data_location` as in a state file. A source that a phase does not name has no samples in it.
"""

import codecs
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from epochal.data_providers.mixes.mixture import MAX_PHASES, MAX_SOURCES, MixPhase, check_starts
from epochal.state.config.data_location import MAX_FILES, DataLocation, Http, NumberedFiles, WeightedHttp
from epochal.state.config.schema import Section
from epochal.state.errors import InvalidInput
from epochal.state.intervals import MAX_INDEX
from epochal.state.wire import strict_json

MAX_NAME_CHARS = 64
MAX_MISTAKES_SHOWN = 10


class MixEntry(Section):
    """One source of a mix without a schedule."""

    location: DataLocation
    weight: Annotated[float, Field(gt=0)]


class NamedSource(Section):
    """One source of a mix with a schedule."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    location: DataLocation


class ScheduledWeights(Section):
    """The weights of the sources, by name, from one data index on."""

    start: Annotated[int, Field(ge=0, lt=MAX_INDEX, alias="from")]
    weights: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1)]


class ScheduledMix(Section):
    """A mix whose weights change."""

    sources: Annotated[list[NamedSource], Field(min_length=1, max_length=MAX_SOURCES)]
    schedule: Annotated[list[ScheduledWeights], Field(min_length=1, max_length=MAX_PHASES)]


@dataclass(frozen=True, slots=True)
class MixSource:
    """One source of a mix: its name in messages, and its location."""

    name: str
    location: DataLocation


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix as its author wrote it; each phase has a weight for every source."""

    sources: tuple[MixSource, ...]
    phases: tuple[MixPhase, ...]


_LIST = TypeAdapter(Annotated[list[MixEntry], Field(min_length=1, max_length=MAX_SOURCES)])
_OBJECT = TypeAdapter(ScheduledMix)


def parse_mix(text: bytes, place: str) -> Mix:
    """Parse a mix. `place` is its path or URL, for messages.

    Raises:
        InvalidInput: it has neither of the two forms, or they contradict themselves; the fault of its author.
    """
    try:
        found = strict_json(text.removeprefix(codecs.BOM_UTF8))
        mix = _scheduled(_OBJECT.validate_python(found)) if isinstance(found, dict) else _listed(found)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, mistake['loc'])) or 'the list'}: {mistake['msg']}{_given(mistake['input'])}"
            for mistake in error.errors(include_url=False)[:MAX_MISTAKES_SHOWN]
        )
        raise InvalidInput(f"mix {place}: {mistakes}", place=place) from error
    except InvalidInput as error:
        raise InvalidInput(f"mix {place}: {error.message}", place=place) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"mix {place} is not JSON: {error}", place=place) from error
    for source in mix.sources:
        if isinstance(source.location, WeightedHttp):
            raise InvalidInput(f"mix {place} names another mix; give its locations themselves", place=place)
        files = source.location.location if isinstance(source.location, Http) else None
        if isinstance(files, NumberedFiles) and files.num_files > MAX_FILES:  # before the list of URLs is made
            raise InvalidInput(f"mix {place}: {files.num_files} files; at most {MAX_FILES}", place=place)
    return mix


def _listed(found: Any) -> Mix:
    entries = _LIST.validate_python(found)
    sources = tuple(
        MixSource(f"{number} ({entry.location.variant})", entry.location) for number, entry in enumerate(entries)
    )
    return Mix(sources, (MixPhase(0, tuple(entry.weight for entry in entries)),))


def _scheduled(mix: ScheduledMix) -> Mix:
    names = [source.name for source in mix.sources]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidInput(f"two sources are named {_quoted(twice)}")
    check_starts([phase.start for phase in mix.schedule])
    for number, phase in enumerate(mix.schedule):
        unknown = sorted(phase.weights.keys() - set(names))
        if unknown:
            known = _quoted(names[:MAX_MISTAKES_SHOWN])
            raise InvalidInput(f"schedule.{number}.weights names {_quoted(unknown)}; the sources are {known}")
        if not any(phase.weights.values()):
            raise InvalidInput(f"schedule.{number}.weights are all 0; at least one must be above 0")
    unused = [name for name in names if not any(phase.weights.get(name) for phase in mix.schedule)]
    if unused:
        raise InvalidInput(f"no phase has a weight for {_quoted(unused)}; give one, or leave the source out")
    return Mix(
        tuple(MixSource(source.name, source.location) for source in mix.sources),
        tuple(MixPhase(phase.start, tuple(phase.weights.get(name, 0.0) for name in names)) for phase in mix.schedule),
    )


def _given(value: Any) -> str:
    """Return a number that was given instead; of other values only their type: they may be URLs with secrets."""
    if value is None or isinstance(value, int | float):
        return f", not {value}"
    return f", not a text of {len(value)} characters" if isinstance(value, str) else ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"{name!a}" for name in names)
