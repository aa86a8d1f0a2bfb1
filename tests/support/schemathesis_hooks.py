"""What no JSON schema can say, for the generator of requests: where an interval ends, and which names are seen."""

from typing import Any

import schemathesis

from epochal.state.client_names import MAX_CLIENT_NAME_CHARS, name_mistake


def runs_backwards(value: object) -> bool:
    """Return whether an interval somewhere in a message ends before its start."""
    if isinstance(value, list):
        return any(runs_backwards(one) for one in value)
    if not isinstance(value, dict):
        return False
    start, end = value.get("start"), value.get("end")
    if isinstance(start, int | float) and isinstance(end, int | float) and start > end:
        return True
    return any(runs_backwards(one) for one in value.values())


def misleads(body: object) -> bool:
    """Return whether a message has a text with characters that are not seen, or a name that none may have."""
    if isinstance(body, list):
        return any(misleads(one) for one in body)
    if isinstance(body, dict):
        names = [body.get("name"), body.get("trainer")]
        wrong = any(isinstance(name, str) and name and name_mistake(name[:MAX_CLIENT_NAME_CHARS]) for name in names)
        return bool(wrong) or any(misleads(one) for one in body.values())
    return isinstance(body, str) and not body.isprintable()


def filter_body(context: Any, body: object) -> bool:
    """Keep generated bodies without such an interval, name or text."""
    return not (runs_backwards(body) or misleads(body))


def filter_query(context: Any, query: Any) -> bool:
    """Keep queries for a part of the history that does not end before its first round."""
    first, last = (str((query or {}).get(name, "")) for name in ("from", "to"))
    return not (first.isdecimal() and last.isdecimal() and int(first) > int(last))


def filter_case(context: Any, case: Any) -> bool:
    """Keep other requests without such an interval, name or text."""
    return filter_body(context, case.body) and filter_query(context, dict(case.query or {}))


schemathesis.hook(filter_body)
schemathesis.hook(filter_query)
schemathesis.hook(filter_case)
