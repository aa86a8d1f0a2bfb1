"""Where Epochal is installed from, as all pages say it: the one place to change once it is published."""

INSTALL_NOTE = (
    "Epochal is not on PyPI yet: in a copy of the repository, `pip install .` installs it, and "
    "`pip install '.[torch]'` with an extra."
)
