"""Options that belong together: a command takes them as one dataclass, whose annotated fields are options.

The rule kept here: what several commands take, or a command and a function of Python, is described once.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def flattened(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for Typer, which has the fields of each dataclass of the command as parameters of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _parameters_of(groups[name])
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))

    def called(**given: Any) -> Any:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in _parameters_of(group)})
            for name, group in groups.items()
        }
        return command(**given, **made)

    called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
    called.__dict__.update(vars(command))
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
        if hasattr(hints[field.name], "__metadata__")
    ]
