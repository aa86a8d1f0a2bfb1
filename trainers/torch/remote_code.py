"""Whether models may run code that comes with their config.

The decision is one for the whole process, made by the person who starts it with `--trust-remote-code`: a run's model is
opened in several places of a program, and a state file or a coordinator must not be able to decide it.
"""

_IS_TRUSTED = False


def trust_remote_code() -> None:
    """Let models in this process run code that comes with their config."""
    global _IS_TRUSTED
    _IS_TRUSTED = True


def is_remote_code_trusted() -> bool:
    """Return whether `trust_remote_code` was called in this process."""
    return _IS_TRUSTED
