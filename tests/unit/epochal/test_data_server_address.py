"""Where a data server listens: as its options say, else where clients were told to ask it."""

from pathlib import Path
from typing import Any

import pytest

from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.tools.serving_data import DataServerOptions, listening_address, tls_of
from tests.support.data.states import state_file

ELSEWHERE = "10.0.0.9:39405,10.0.0.8:39406"


def asked_at(location: Any) -> StateFile:
    return state_file(model__LLM__data_location=location)


def options(**given: Any) -> DataServerOptions:
    return DataServerOptions(Path("data.toml"), **given)


@pytest.mark.parametrize(
    ("location", "given", "expected"),
    [
        ({"Server": "10.0.0.9:39405"}, {}, ("0.0.0.0", 39405)),
        ({"Server": ELSEWHERE}, {"port": 39406}, ("0.0.0.0", 39406)),
        ({"Server": "localhost:1,10.0.0.8:2"}, {"port": 1}, ("0.0.0.0", 1)),
        ({"Server": "data.example:39405"}, {"port": 0}, ("0.0.0.0", 0)),
        ({"Server": ELSEWHERE}, {"port": 39406, "host": "127.0.0.1"}, ("127.0.0.1", 39406)),
        ({"Server": "127.0.0.1:1,127.0.0.1:2"}, {"port": 2}, ("127.0.0.1", 2)),
        ({"Server": "[::1]:39405"}, {"port": 7}, ("::1", 7)),
        ({"Local": "data"}, {"port": 7}, ("127.0.0.1", 7)),
        ({"Local": "data"}, {"port": 7, "host": "10.0.0.9"}, ("10.0.0.9", 7)),
    ],
)
def test_data_server_listens_where_its_clients_were_told_to_ask(
    location: Any, given: dict[str, Any], expected: tuple[str, int]
) -> None:
    assert listening_address(asked_at(location), options(**given)) == expected


@pytest.mark.parametrize(
    ("location", "message"),
    [({"Server": ELSEWHERE}, "several data servers .*give this one's --port"), ({"Local": "data"}, "give --port")],
)
def test_data_server_without_an_address_of_its_own_asks_for_a_port(location: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        listening_address(asked_at(location), options())


def test_data_server_for_other_machines_needs_tls_or_to_be_told() -> None:
    state, given = asked_at({"Server": ELSEWHERE}), {"port": 39406}
    host, _ = listening_address(state, options(**given))
    with pytest.raises(InvalidInput, match=r"would listen on 0\.0\.0\.0, for other machines, .*--tls-cert.*--insecure"):
        tls_of(state, options(**given), host)
    assert tls_of(state, options(**given, insecure=True), host) is None


@pytest.mark.parametrize(
    ("location", "given", "message"),
    [
        ("data.example:1", {"tls_cert": Path("cert.pem")}, "must be given together"),
        ("data.example:1", {"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")}, "allowed with --tls-cert: tls:"),
        ("tls://data.example:1", {"tls_cert": Path(__file__), "tls_key": Path(__file__)}, "not a certificate"),
        ("tls://data.example:1", {"insecure": True}, "clients ask it over TLS"),
    ],
)
def test_certificate_that_clients_could_not_use_is_refused(location: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tls_of(asked_at({"Server": location}), options(**given), "0.0.0.0")
