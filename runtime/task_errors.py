"""The error to report when several tasks of a group have failed."""


def first_error(group: BaseExceptionGroup[BaseException], wanted: type[BaseException] = BaseException) -> BaseException:
    """Return the first error of type `wanted`, in depth-first order, else the first error of any type.

    A task group cancels its other tasks after the first failure, so later errors mostly follow from the first.
    """
    found = (group.subgroup(wanted) or group).exceptions[0]
    return first_error(found, wanted) if isinstance(found, BaseExceptionGroup) else found
