"""Reports all mistakes in a file that a person wrote, each at its dotted path.

pydantic finds the places of the mistakes; `schema.known_places` says in plain words what is allowed there. Rules over
several fields are checked beside pydantic, so that they are reported together with the mistakes of other fields.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import tomli
from pydantic import BaseModel, ValidationError

from epochal.state.config.free_table import WrongEntry
from epochal.state.config.schema import ABSENT, MAX_INTEGER, Known, Path, known_places
from epochal.state.errors import InvalidConfig, Mistake

MAX_VALUE_CHARS = 80
MIN_LIKENESS = 0.6
HIDDEN = "(not shown)"
SECRET_TABLE = "notify"
"""Its addresses and keys are secrets."""
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields, checked only if each of them is valid by itself.

    Attributes:
        fields: dotted paths; the mistake is reported at the first.
        holds: takes the fields' values as the file spells them, defaults filled in.
        allowed: what would be right, as a phrase; `{0}`, `{1}`, … are replaced by the fields' values.
    """

    fields: tuple[str, ...]
    holds: Callable[..., bool]
    allowed: str


class WrongPlaces(ValueError):
    """A file is wrong in places that its model found itself. `mistakes` are these."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


def parse_file(model: type[M], rules: Sequence[Rule], text: str, source: str) -> M:
    """Parse and validate a file named `source`. Raises `InvalidConfig` with every mistake."""
    tree = parse_tree(text, source)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        mistakes = _mistakes(known_places(model), rules, tree, error)
    raise InvalidConfig(source, mistakes)  # without its cause, whose text has what the mistakes hide


def mistakes_in(model: type[BaseModel], rules: Sequence[Rule], tree: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """Return every mistake in a file's values."""
    try:
        model.model_validate(tree)
    except ValidationError as error:
        return _mistakes(known_places(model), rules, tree, error)
    return ()


def parse_tree(text: str, source: str) -> dict[str, Any]:
    """Return a file's values as they are. Raises `InvalidConfig` if it is not TOML."""
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: an integer of thousands of digits, too
        mistake = Mistake("", f"not TOML: {error}", "TOML 1.0 (https://toml.io/en/v1.0.0)")
        raise InvalidConfig(source, (mistake,)) from error


def broken_rules(
    known: Known, rules: Sequence[Rule], tree: Mapping[str, Any], invalid: Sequence[Path]
) -> list[Mistake]:
    """Return a mistake for each broken rule whose fields are all valid.

    Args:
        known: the file's places.
        tree: the file's values; missing ones take their default.
        invalid: the paths of fields that are wrong by themselves.
    """
    mistakes = []
    for rule in rules:
        paths: list[Path] = [tuple(field.split(".")) for field in rule.fields]
        if any(_overlap(path, wrong) for path in paths for wrong in invalid):
            continue
        found = [(path, _value_at(tree, path, ABSENT)) for path in paths]
        values = [known.at(path).default if value is ABSENT else value for path, value in found]
        if not rule.holds(*values):
            shown = [show_at(path, value) for path, value in zip(paths, values, strict=True)]
            mistakes.append(Mistake(rule.fields[0], shown[0], rule.allowed.format(*shown)))
    return mistakes


def show(value: Any) -> str:
    """Return the value as a file spells it, cut to `MAX_VALUE_CHARS`."""
    text = _spell(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def show_at(path: Path, value: Any) -> str:
    """Return the value at a path as a file spells it, cut; one of `[notify]`, which may be a secret, is hidden."""
    return HIDDEN if path[:1] == (SECRET_TABLE,) else show(value)


def _spell(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in escaped) + '"'
        case Mapping():
            return f"{{ {', '.join(f'{key} = {_spell(item)}' for key, item in value.items())} }}" if value else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_spell, value))}]"
    return str(value)


def _mistakes(
    known: Known, rules: Sequence[Rule], tree: Mapping[str, Any], error: ValidationError
) -> tuple[Mistake, ...]:
    problems = [
        (problem["type"], *_place_of(problem)) for problem in error.errors(include_url=False, include_input=False)
    ]
    allowed_at = {path: allowed for _, path, allowed in problems if allowed}
    places = [(kind, path) for kind, path, _ in problems if path]  # the model itself has no path: it is a broken rule
    mistakes: list[Mistake] = []
    misspelt: set[Path] = set()
    for path in (path for kind, path in places if kind == "extra_forbidden"):
        mistake = _unknown_key(known, path)
        mistakes.append(mistake)
        if mistake.nearest is not None:
            misspelt.add((*path[:-1], mistake.nearest))
    for kind, path in places:
        if kind == "extra_forbidden" or (kind == "missing" and path in misspelt):
            continue  # a missing key beside its misspelling is one mistake, not two
        wrong = _wrong_value(known, tree, path)
        mistakes.append(replace(wrong, allowed=allowed_at[path], nearest=None) if path in allowed_at else wrong)
    invalid = [path for kind, path in places if kind != "extra_forbidden"]
    mistakes.extend(broken_rules(known, rules, tree, invalid))
    causes = (problem.get("ctx", {}).get("error") for problem in error.errors(include_url=False, include_input=False))
    mistakes.extend(found for cause in causes if isinstance(cause, WrongPlaces) for found in cause.mistakes)
    return tuple(mistakes)


def _place_of(problem: Any) -> tuple[Path, str]:
    """Return the path of a problem that pydantic found, and what is allowed there; "" for what the schema allows."""
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, WrongEntry):
        return (*problem["loc"], *cause.path), cause.allowed
    return problem["loc"], ""


def _unknown_key(known: Known, path: Path) -> Mistake:
    parent, key = known.at(path[:-1]), str(path[-1])
    elsewhere = [".".join(other) for other in known.paths() if other[-1] == key]
    nearest = elsewhere[0] if len(elsewhere) == 1 else _nearest(key, parent.children)
    if nearest is not None:
        allowed = "only known keys"
    else:
        allowed = f"only the keys {', '.join(parent.children)}" if parent.children else parent.allowed
    return Mistake(_dotted(path), "an unknown key", allowed, nearest)


def _wrong_value(known: Known, tree: Mapping[str, Any], path: Path) -> Mistake:
    place = known.at(path)
    value = _value_at(tree, path, ABSENT)
    if value is ABSENT:
        return Mistake(_dotted(path), None, place.allowed)
    allowed = place.allowed
    if type(value) is int and abs(value) > MAX_INTEGER:
        allowed += " that fits in 64 bits"
    spelled = next(iter(value), "") if isinstance(value, Mapping) else value
    misspelt = isinstance(spelled, str) and spelled not in place.children
    nearest = _nearest(spelled, place.children) if misspelt else None
    return Mistake(_dotted(path), show_at(path, value), allowed, nearest)


def _nearest(key: str, candidates: Iterable[str]) -> str | None:
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    close = difflib.get_close_matches(key.casefold(), by_folded, n=1, cutoff=MIN_LIKENESS)
    return by_folded[close[0]] if close else None


def _value_at(tree: Any, path: Path, default: Any) -> Any:
    for part in path:
        keyed = isinstance(tree, (dict, Mapping)) and part in tree  # a dict is told at once, another mapping is not
        if not keyed and not (isinstance(tree, list) and isinstance(part, int) and part < len(tree)):
            return default
        tree = tree[part]
    return tree


def _dotted(path: Path) -> str:
    return ".".join(HIDDEN if "://" in str(part) else str(part) for part in path)  # an address was written as a key


def _overlap(one: Path, other: Path) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))
