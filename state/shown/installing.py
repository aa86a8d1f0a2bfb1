"""Where Epochal is installed from, as all pages say it: the one place to change once it is published.

A Python that has Epochal needs none of it: there `pip install 'epochal[torch]'` adds an extra to what is installed.
"""

INDEX_URL: str | None = None
"""Address of the project's own index of packages (PEP 503); None as long as it has none."""
SOURCE_URL: str | None = None
"""Address of the repository, as `project.urls` of pyproject.toml has it; None as long as it has no public one."""


def install_command(extras: str = "", index_url: str | None = INDEX_URL, source_url: str | None = SOURCE_URL) -> str:
    """Return the command that installs Epochal, with extras separated by commas, from the best place that there is."""
    named = f"[{extras}]" if extras else ""
    if index_url is not None:
        return f"pip install --extra-index-url {index_url} 'epochal{named}'"
    if source_url is not None:
        return f"pip install 'epochal{named} @ git+{source_url}'"
    return f"pip install '.{named}'" if named else "pip install ."


def install_note(index_url: str | None = INDEX_URL, source_url: str | None = SOURCE_URL) -> str:
    """Return where Epochal is installed from: from its index, else from its repository, else from a copy of that."""
    if index_url is not None:
        return f"Epochal is installed from its own index: `pip install --extra-index-url {index_url} epochal`."
    copy = "in a copy of the repository, `pip install .` installs it, and `pip install '.[torch]'` with an extra."
    if source_url is None:
        return f"Epochal is not on PyPI yet: {copy}"
    return f"Epochal is not on PyPI yet: `pip install 'epochal @ git+{source_url}'` installs it; {copy}"


INSTALL_NOTE = install_note()
