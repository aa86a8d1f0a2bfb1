"""Texts that a hostile client may choose, and what a page that shows them as text must not do."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

SCRIPT = "<script>window.owned = 1</script>"
IMAGE = "<img src=//evil.test/x onerror=window.owned=1>"
ATTRIBUTE = "\"'><svg onload=window.owned=1>"
ANSI = "\x1b[31mred\x1b[0m\x1b]0;owned\x07\r\n\t"
BIDI = "\u202eexe.gpj\u202c \u2066isolated\u2069 \u200f\u061c"
INVISIBLE = "a\u200b\u200d\ufeff\u00adb\u2028c\ue000"
COMBINING = "Z" + "\u0301\u0323\u0336\u0489" * 12
ADDRESS = "javascript:window.owned=1"
TEMPLATE = "{{7*7}} ${7*7} %s %n"
WIDE = "﷽" * 60
LONG = "W" * 64
TEXTS = (SCRIPT, IMAGE, ATTRIBUTE, ANSI, BIDI, INVISIBLE, COMBINING, ADDRESS, TEMPLATE, WIDE, LONG)

OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2028\u2029\u2060-\u206f\ufeff\u061c\u00ad]"
)
"""Characters that a terminal or a line of text would obey, or that nobody sees."""


async def assert_only_text(page: "Page", own_host: str, hosts: set[str]) -> None:
    """Assert that nothing of what the page shows was obeyed: no script, no element, no request, no turned text."""
    assert await page.evaluate("window.owned") is None
    made = "main script, main img, main iframe, main object, main [onload], main [onerror]"
    assert await page.evaluate("(made) => document.querySelectorAll(made).length", made) == 0
    shown = await page.evaluate(
        "document.title + document.body.textContent + [...document.querySelectorAll('[title], [aria-label]')]"
        ".map((found) => found.title + found.ariaLabel).join(' ')"
    )
    assert OBEYED.findall(shown) == []
    links = await page.evaluate("[...document.querySelectorAll('a[href]')].map((link) => new URL(link.href).protocol)")
    assert set(links) <= {"http:"}
    assert hosts == {own_host}
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
