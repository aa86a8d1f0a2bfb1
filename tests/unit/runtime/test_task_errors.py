"""`runtime/task_errors.py`: one error out of a group."""

from epochal.runtime.task_errors import first_error

INNER = LookupError("inner")
GROUP = BaseExceptionGroup(
    "outer", [BaseExceptionGroup("first", [ValueError("first")]), ExceptionGroup("second", [INNER])]
)


def test_first_error_is_looked_for_depth_first() -> None:
    assert str(first_error(GROUP)) == "first"


def test_first_error_of_the_wanted_type_goes_before_others() -> None:
    assert first_error(GROUP, LookupError) is INNER


def test_first_error_is_any_where_none_is_wanted() -> None:
    assert str(first_error(GROUP, OSError)) == "first"
