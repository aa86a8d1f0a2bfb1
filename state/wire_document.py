"""The base of every document and message, apart from what parses them: intervals need no parser to be imported."""

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pydantic import ConfigDict


class WireDocument:
    """Base of every document and message: an unknown field is an error and not a silent loss, and so is a NaN.

    A number is a JSON number: neither `"1"` nor `true` is one.
    """

    __slots__ = ()

    __pydantic_config__: ClassVar["ConfigDict"] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}

    def _repr_html_(self) -> str:
        """Return the document as a table, as a notebook shows it."""
        from epochal.state.text.html_tables import document_html

        return document_html(self)
