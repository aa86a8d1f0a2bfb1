"""The one error to tell of when several tasks of a group have failed."""


def first_error(group: BaseExceptionGroup[BaseException], wanted: type[BaseException] = BaseException) -> BaseException:
    """Return the first error of type `wanted`, looked for depth first; where there is none, the first error.

    A task group cancels its other tasks after the first failure, so the others mostly follow from the first one.
    """
    found = (group.subgroup(wanted) or group).exceptions[0]
    return first_error(found, wanted) if isinstance(found, BaseExceptionGroup) else found
