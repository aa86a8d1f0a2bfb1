"""The body of the site's page of the Python API: a heading for each name that `epochal` exports, for mkdocstrings."""

import epochal

SUBJECTS = {
    "epochal.remote": "Runs",
    "epochal.data_providers": "Data providers",
    "epochal.tools.plan": "Planning a run",
    "epochal.tools.prepare": "Preparing text",
    "epochal.batching.packing": "Packing",
    "epochal.batching.mesh": "Meshes",
    "epochal.batching.chunking": "Chunks",
    "epochal.batching": "Trainers",
    "epochal.trainers": "Trainers",
    "epochal.coordinator_client": "Coordinator",
    "epochal.runtime": "Coordinator",
    "epochal.state": "State file and batches",
    "epochal.state.messages": "Runs",
    "epochal.state.shown": "Runs",
    "epochal.state.documents": "Runs",
    "epochal.state.phase_names": "Runs",
    "epochal.state.errors": "Errors",
    "epochal.state.refusals": "Errors",
}
"""The heading for each package's names; the longest prefix of a module's name decides."""


def body() -> str:
    """Return the page's body: every name below its subject's heading, with the place of its definition."""
    subjects: dict[str, list[str]] = {}
    for name, module in epochal.MODULE_OF.items():
        prefixes = [prefix for prefix in SUBJECTS if f"{module}.".startswith(f"{prefix}.")]
        entry = f"### {name}\n\n`epochal.{name}`, defined in `{module}`.\n\n::: {module}.{name}"
        subjects.setdefault(SUBJECTS[max(prefixes, key=len)], []).append(entry)
    return "\n\n".join("\n\n".join([f"## {subject}", *entries]) for subject, entries in subjects.items())
