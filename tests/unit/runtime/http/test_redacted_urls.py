"""No message shows a password, also of a URL that is wrong."""

import pytest

from epochal.runtime.http.redacted_urls import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:s3cret@host:8000/x", "http://user:…@host:8000/x"),
        ("postgresql://user:s3/cr?e#t@x@host/db?run=one", "postgresql://user:…@host/db?run=one"),
        ("postgresql://user:s3%cret@[::1/db", "postgresql://user:…@[::1/db"),
        ("postgresql:/user:s3cret@host/db", "postgresql:/user:…@host/db"),
        ("postgresql:user:s3cret@host/db", "postgresql:…@host/db"),
        ("user:s3cret@host/db", "user:…@host/db"),
        ("postgresql://host/db?user=me&password=s3cret&run=one", "postgresql://host/db?user=me&password=…&run=one"),
        ("host=h password = 's3 \\'cret' dbname=db", "host=h password = … dbname=db"),
        ("host=h PASSWORD=s3cret", "host=h PASSWORD=…"),
    ],
)
def test_password_in_a_url_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("url", ["http://host:8000/a:b", "runs/one", "http://user@host", "s3://bucket/run", "a@b", ""])
def test_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert without_password(url) == url
