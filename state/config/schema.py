"""The parts of `state.toml` and `data.toml`: sections, and enums as Rust's serde writes them.

A Rust enum is written in TOML *externally tagged* (https://serde.rs/enum-representations.html): a variant without
content is a bare string (`optimizer = "Dummy"`), any other a table with exactly one key, the variant's name
(`data_location = { Server = "host:port" }`, or `[model.LLM.data_location.Http]`). Here a variant is a class:

- `Section` without fields: a variant without content;
- `Section` with fields: a variant whose content is a table;
- `SingleValue`: a variant whose content is one value.

A variant has the name of its class, or the one that `variant=` gives.

`known_places` reads a model's fields into a tree of `Known` places, each with a phrase that says what is allowed there.

The rule kept here: types are strict (no `"3"` for 3, no `1` for true), an unknown key is a mistake, numbers are finite,
and a model never changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from epochal.state.config.file_urls import path_of

MAX_INTEGER = 2**63 - 1
"""TOML requires only integers of 64 bits; not every reader accepts a larger one."""

MAX_DURATION_S = 1_000_000_000.0
"""About 31 years: longer than any real timer, and short enough that an event loop's clock keeps its precision."""

Natural = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Duration = Annotated[float, Field(gt=0, le=MAX_DURATION_S, description="a number of seconds above 0, at most 10⁹")]
Text = Annotated[str, Field(min_length=1)]
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _check_path(place: str) -> str:
    path = path_of(place)
    if not path or "://" in path:
        raise ValueError("not a path")
    return path


PathText = Annotated[
    str,
    AfterValidator(_check_path),
    Field(description="a path on this machine, as a string, or file:///PATH, and no other URL"),
]

ABSENT: Any = object()
"""The default of a place that has none."""

Path = tuple[str | int, ...]
"""A place in a file: keys, and positions in lists."""

V = TypeVar("V")


class _Named:
    """Gives a class the name of its variant: its own, unless another one is given."""

    variant: ClassVar[str]

    def __init_subclass__(cls, variant: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.variant = variant or cls.__name__


class Section(_Named, BaseModel):
    """One table of a file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class SingleValue(_Named, RootModel[V]):
    """A variant whose content is one value, in `root`; subclasses name it."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class TokenSize(StrEnum):
    """The size of one token in a token file; tokens are unsigned and little-endian."""

    TWO_BYTES = "TwoBytes"
    FOUR_BYTES = "FourBytes"

    @property
    def size_bytes(self) -> int:
        return 2 if self is TokenSize.TWO_BYTES else 4


def variants_of(union: Any) -> Mapping[str, type[BaseModel]]:
    """Return the variant classes of a union, by the names that files use for them."""
    return {kind.variant: kind for kind in get_args(union) if kind is not NoneType}


def is_unit(variant: type[BaseModel]) -> bool:
    """Return whether the variant has no content and is written as a bare string."""
    return not variant.model_fields


@dataclass(frozen=True, slots=True)
class TaggedEnum:
    """Marks a union of variant classes as an externally tagged enum: `Annotated[A | B, TaggedEnum()]`.

    In a union with None, a missing line is None.

    A path in an error contains the variant's name, so it is the path that the file spells.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        variants = variants_of(source)
        tagged = core_schema.tagged_union_schema(
            {name: _content_schema(name, handler.generate_schema(kind)) for name, kind in variants.items()},
            discriminator=tag_of,
            serialization=core_schema.plain_serializer_function_ser_schema(_to_file),
        )
        return core_schema.nullable_schema(tagged) if NoneType in get_args(source) else tagged


def _content_schema(name: str, schema: CoreSchema) -> CoreSchema:
    def content(value: Any) -> Any:
        if isinstance(value, str):
            return {}
        return value[name] if isinstance(value, Mapping) else value

    return core_schema.no_info_before_validator_function(content, schema)


def tag_of(value: Any) -> str | None:
    """Return the variant's name from a bare string, a table with one key or an instance; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return next(iter(value)) if len(value) == 1 else None
    return getattr(value, "variant", None)


def _to_file(value: Any) -> Any:
    return value.variant if is_unit(type(value)) else {value.variant: value.model_dump(mode="json")}


@dataclass(frozen=True, slots=True)
class Known:
    """A place in a file: what is allowed there, its default, and the places below it by key."""

    allowed: str
    children: Mapping[str, "Known"]
    default: Any = ABSENT

    def at(self, path: Path) -> "Known":
        """Return the deepest known place on the path."""
        place = self
        for part in path:
            if isinstance(part, int):  # an item of a list of tables
                continue
            child = place.children.get(str(part))
            if child is None:
                break
            place = child
        return place

    def paths(self) -> Iterable[tuple[str, ...]]:
        """Return the path of every place below this one."""
        for key, child in self.children.items():
            yield (key,)
            yield from ((key, *rest) for rest in child.paths())


@cache
def known_places(model: type[BaseModel]) -> Known:
    """Return the tree of all places that a file of this model may have."""
    if issubclass(model, RootModel):
        return _known_field(model.model_fields["root"])
    if is_unit(model):
        return Known("nothing more: the name alone, as a string", {})
    children = {name: _known_field(field) for name, field in model.model_fields.items()}
    return Known(f"a table with the keys {', '.join(children)}", children)


def _known_field(field: FieldInfo) -> Known:
    kind = field.annotation
    if any(isinstance(mark, TaggedEnum) for mark in field.metadata):
        variants = variants_of(kind)
        spelled = [f'"{name}"' if is_unit(variant) else f"{{ {name} = … }}" for name, variant in variants.items()]
        children = {name: known_places(variant) for name, variant in variants.items()}
        absent = " or no such line" if NoneType in get_args(kind) else ""
        return Known(f"exactly one of {', '.join(spelled)}{absent}", children, field.get_default())
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        below = known_places(kind)
        return Known(field.description or below.allowed, below.children)
    table = next((arg for arg in get_args(kind) if isinstance(arg, type) and issubclass(arg, BaseModel)), None)
    if table is not None and NoneType in get_args(kind):
        below = known_places(table)
        return Known(f"{below.allowed}, or no such table", below.children, field.get_default())
    default = ABSENT if field.is_required() else field.get_default()
    item = next(iter(get_args(kind)), None) if get_origin(kind) is tuple else None
    if isinstance(item, type) and issubclass(item, BaseModel):
        return Known(field.description or "a list of tables", known_places(item).children, default)
    return Known(field.description or _allowed(field), {}, default)


def _allowed(field: FieldInfo) -> str:
    """Return a phrase for the values that a plain field allows, from its type and bounds."""
    kind = next(arg for arg in (*get_args(field.annotation), field.annotation) if arg is not NoneType)
    if get_origin(field.annotation) is Literal:
        return _either(get_args(field.annotation))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _either(member.value for member in kind)
    if kind is bool:
        return "true or false"
    if kind is str:
        return "a string that is not empty" if field.metadata else "a string"
    return f"{'an integer' if kind is int else 'a finite number'}{_bounds(field.metadata)}"


def _either(names: Iterable[str]) -> str:
    *most, last = [f'"{name}"' for name in names]
    return f"{', '.join(most)} or {last}"


def _bounds(metadata: Sequence[Any]) -> str:
    def bound(name: str) -> Any:
        return next((getattr(mark, name) for mark in metadata if hasattr(mark, name)), None)

    low, high, above, below = bound("ge"), bound("le"), bound("gt"), bound("lt")
    high = None if high == MAX_INTEGER else high
    parts = []
    if low is not None:
        parts.append(f"of at least {low}" if high is None and below is None else f"from {low}")
    if above is not None:
        parts.append(f"above {above}")
    if below is not None:
        parts.append(f"to below {below}")
    if high is not None:
        parts.append(f"to {high}")
    return f" {' '.join(parts)}" if parts else ""
