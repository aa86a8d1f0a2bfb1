"""The body of the site's page of errors: every kind of refusal, error and warning, with cause and remedy."""

from collections.abc import Iterator

from epochal.runtime.explanations import GROUPS, explanations
from epochal.state.refusals import Refusal


def body() -> str:
    """Return the page's body: a heading for each kind, so that links lead to it."""
    return "\n\n".join(_parts())


def _parts() -> Iterator[str]:
    statuses = {refusal.value: f"Status {refusal.status}. " for refusal in Refusal if refusal is not Refusal.UNKNOWN}
    for group, title in GROUPS.items():
        yield f"## {title}"
        for found in explanations().values():
            if found.group == group:
                yield f"### {found.kind}\n\n{statuses.get(found.kind, '')}{found.means}\n\n*What to do:* {found.remedy}"
