"""Tokenizers: which one is found, how it is identified, and what ends a document."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from epochal.state.errors import InvalidInput
from epochal.tools.prepare.text_tokenizer import find_tokenizer
from epochal.trainers.sources.tokenizers import identity_of
from tests.support.heavy import need_module
from tests.support.servers.hub_server import fake_hub, point_at

TEXTS = ["the cat sat on the mat", "schön ist es auf der Welt zu sein\n" * 20]


def write_tokenizer(folder: Path, special: list[str], texts: Sequence[str] = TEXTS, **config: object) -> Path:
    """Write a small tokenizer, and what is beside it."""
    need_module("tokenizers")
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=300, special_tokens=special, show_progress=False)
    folder.mkdir(exist_ok=True)
    trained.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_bytes_end_with_a_byte_that_no_text_has() -> None:
    found = find_tokenizer("bytes", None)
    tokens, lengths = found.encoder().encode(["aä".encode(), b"b"])
    assert (tokens.tolist(), lengths, tokens.dtype) == ([97, 195, 164, 255, 98, 255], [4, 2], np.dtype("<u2"))
    assert find_tokenizer("bytes", "0").identity.end_id == 0
    with pytest.raises(InvalidInput, match="a byte from 0 to 255"):
        find_tokenizer("bytes", "256")


def test_a_file_encodes_as_the_library_does(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, ["<|endoftext|>"]) / "tokenizer.json"
    from tokenizers import Tokenizer

    found = find_tokenizer(str(path), None)
    tokens, lengths = found.encoder().encode([text.encode() for text in TEXTS])
    bare = [encoding.ids for encoding in Tokenizer.from_file(str(path)).encode_batch(TEXTS)]
    assert tokens.tolist() == [*bare[0], 0, *bare[1], 0]
    assert lengths == [len(ids) + 1 for ids in bare]
    assert (found.identity.end_token, found.identity.end_id, found.identity.token_size) == ("<|endoftext|>", 0, 2)


def test_a_document_cannot_forge_its_end(tmp_path: Path) -> None:
    found = find_tokenizer(str(write_tokenizer(tmp_path, ["<|endoftext|>"])), None)
    tokens, _ = found.encoder().encode([b"a<|endoftext|>b"])
    assert tokens.tolist().count(0) == 1


def test_padding_and_truncation_of_the_file_do_not_count(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, ["<|endoftext|>"]) / "tokenizer.json"
    from tokenizers import Tokenizer

    cutting = Tokenizer.from_file(str(path))
    cutting.enable_truncation(3)
    cutting.enable_padding(length=8)
    cutting.save(str(tmp_path / "cutting.json"))
    plain, cut = find_tokenizer(str(path), None), find_tokenizer(str(tmp_path / "cutting.json"), None)
    texts = [text.encode() for text in TEXTS]
    assert plain.encoder().encode(texts)[0].tolist() == cut.encoder().encode(texts)[0].tolist()
    assert plain.identity.sha256 == cut.identity.sha256


def test_another_vocabulary_is_another_identity(tmp_path: Path) -> None:
    one = (write_tokenizer(tmp_path / "one", ["<eos>"]) / "tokenizer.json").read_bytes()
    other = (write_tokenizer(tmp_path / "other", ["</s>"]) / "tokenizer.json").read_bytes()
    assert identity_of(one) != identity_of(other)


def test_the_end_token_is_found_or_its_candidates_are_named(tmp_path: Path) -> None:
    says = write_tokenizer(tmp_path / "says", ["<a>", "<b>"], eos_token={"content": "<b>"})
    assert find_tokenizer(str(says), None).identity.end_id == 1
    silent = write_tokenizer(tmp_path / "silent", ["<a>", "<b>"])
    with pytest.raises(InvalidInput, match="--end-token, one of: <a>, <b>"):
        find_tokenizer(str(silent), None)
    assert find_tokenizer(str(silent), "<b>").identity.end_id == 1
    assert find_tokenizer(str(silent), "0").identity.end_token == "<a>"
    with pytest.raises(InvalidInput, match="'<c>' is no token of"):
        find_tokenizer(str(silent), "<c>")


def test_tokenizers_that_are_none_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("tokenizers")
    need_module("huggingface_hub")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"is not a tokenizer\.json"):
        find_tokenizer(str(tmp_path), None)
    with pytest.raises(InvalidInput, match="there is no such file"):
        find_tokenizer(str(tmp_path / "other.json"), None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match=r"is not in the Hub's cache, .* and HF_HUB_OFFLINE is set"):
        find_tokenizer("epochal-test/none", None)


@pytest.mark.nightly
def test_a_hub_that_is_away_is_asked_twice_without_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    need_module("huggingface_hub")
    made = write_tokenizer(tmp_path / "made", ["<eos>"])
    with fake_hub() as server:
        point_at(server, tmp_path / "cache", monkeypatch)
        server.fail_with(503)
        with pytest.raises(InvalidInput, match=r"the Hub fails \(answered 503\); try again later; allowed: "):
            find_tokenizer("org/model", None)
        assert len(server.requests) == 2
        server.fail_with(503, times=1)
        server.files = {"tokenizer.json": (made / "tokenizer.json").read_bytes()}
        there = find_tokenizer("org/model", None)
        server.fail_with(503)
        assert find_tokenizer("org/model", None) == there
    assert capfd.readouterr().err == ""
