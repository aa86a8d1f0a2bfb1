"""`WeightedHttp`: a mix of locations from a list on the disk or behind a URL, through the real factory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.mixes import weighted
from epochal.data_providers.mixes.mixture import PERIOD
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.open_data import follow_mix, open_provider
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.state.errors import EpochalError, InternalError, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.reader_limits import MAX_MIX_BYTES
from tests.support.data.states import state_file
from tests.support.servers.data_http import FileServer, http_server

LENGTH = 16
COUNTS = {"en": 300, "de": 100}


MANY_FILES = {
    "Http": {
        "location": {
            "NumberedFiles": {
                "url_template": "http://127.0.0.1:1/{}.bin",
                "start_index": 0,
                "n_left_pad_zeros": 0,
                "num_files": 10**9,
            }
        },
        "token_size_in_bytes": "TwoBytes",
        "shuffle": "DontShuffle",
    }
}


def write_sources(folder: Path) -> None:
    """Two files whose tokens say which file and which sequence they are."""
    for number, (name, count) in enumerate(COUNTS.items()):
        tokens = np.repeat(np.arange(count) + 1000 * number, LENGTH).astype("<u2")
        tokens.tofile(folder / f"{name}.bin")


def write_mix(folder: Path, *entries: tuple[Any, float]) -> Path:
    path = folder / "mix.json"
    path.write_text(json.dumps([{"location": location, "weight": weight} for location, weight in entries]))
    return path


async def opened(place: str) -> DataProvider:
    """Open a mix that the owner of the machine named himself."""
    return await open_provider(state_file(), lambda: "", OWNERS, place)


async def test_mix_of_files_serves_each_its_share_without_repeats_in_a_pass(tmp_path: Path) -> None:
    write_sources(tmp_path)
    provider = await opened(str(write_mix(tmp_path, ({"Local": "en.bin"}, 3), ({"Local": "de.bin"}, 1))))
    assert isinstance(provider, WeightedDataProvider)
    assert provider.sequence_count is None
    rows = (await provider.get_samples(DataIds(0, 399))).rows()[:, 0].tolist()
    english = [row for row in rows if row < 1000]
    german = [row - 1000 for row in rows if row >= 1000]
    assert english == list(range(300))
    assert german == list(range(100))
    assert all(abs(sum(row >= 1000 for row in rows[:n]) - n / 4) < 1 for n in range(1, 401))
    far = (await provider.get_samples(DataIds(PERIOD, PERIOD + 3))).rows()[:, 0].tolist()
    assert sorted(far) == [*(3 * PERIOD // 4 % 300 + number for number in range(3)), 1000 + PERIOD // 4 % 100]
    await provider.aclose()


async def test_mix_behind_a_url_is_the_same_mix(tmp_path: Path) -> None:
    write_sources(tmp_path)
    async with http_server(FileServer(tmp_path)) as url:

        def http(name: str) -> Any:
            location = {"SingleUrl": f"{url}/{name}.bin"}
            return {"Http": {"location": location, "token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}}

        near = await opened(str(write_mix(tmp_path, ({"Local": "en.bin"}, 2), ({"Local": "de.bin"}, 1.5))))
        write_mix(tmp_path, (http("en"), 2), (http("de"), 1.5))
        far = await opened(f"{url}/mix.json")
        assert near.fingerprint == far.fingerprint
        one, other = await near.get_samples(DataIds(5, 700)), await far.get_samples(DataIds(5, 700))
        assert np.array_equal(one.input_ids, other.input_ids)
        await near.aclose()
        await far.aclose()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not JSON"),
        ('"mix"', "should be a valid list"),
        ("{}", r"sources: Field required; schedule: Field required"),
        ("[]", "at least 1 item"),
        ("[" * 200_000, "is not JSON"),
        ('[{"location": "Dummy", "weight": NaN}]', "is not JSON"),
        ('[{"location": "Dummy", "weight": 0}]', r"0\.weight"),
        ('[{"location": "Dummy", "weight": -1}, {"location": "Dummy"}]', r"0\.weight.*1\.weight"),
        ('[{"location": "Dmmy", "weight": 1}]', r"0\.location"),
        ('[{"location": {"WeightedHttp": "mix.json"}, "weight": 1}]', "names another mix"),
        (json.dumps([{"location": MANY_FILES, "weight": 1}]), "1000000000 files; at most 100000"),
    ],
)
async def test_list_that_is_no_mix_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mix.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as refused:
        await opened(str(path))
    assert "mix.json" in str(refused.value)


@pytest.mark.parametrize("text", ["no json", "[]", '[{"location": {"WeightedHttp": "a.json"}, "weight": 1}]'])
async def test_url_that_holds_no_mix_is_refused_without_its_credentials(tmp_path: Path, text: str) -> None:
    (tmp_path / "mix.json").write_text(text)
    async with http_server(FileServer(tmp_path)) as url:
        with pytest.raises(InvalidInput, match=r"mix\.json") as refused:
            await opened(url.replace("http://", "http://user:secret@") + "/mix.json?key=secret")
    assert "secret" not in str(refused.value) + str(refused.value.context)


async def test_list_that_is_missing_or_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.json"):
        await opened(str(tmp_path / "absent.json"))
    (tmp_path / "long.json").write_bytes(b" " * (MAX_MIX_BYTES + 1))
    with pytest.raises(InvalidInput, match="more than"):
        await opened(str(tmp_path / "long.json"))
    async with http_server(FileServer(tmp_path)) as url:
        with pytest.raises(Rejected, match="at most"):
            await opened(f"{url}/long.json")


@pytest.mark.parametrize(
    ("location", "error"), [({"Local": "absent.bin"}, Rejected), ({"Local": "empty.bin"}, CorruptData)]
)
async def test_source_that_cannot_be_opened_ends_the_mix_with_its_error(
    tmp_path: Path, location: Any, error: type[EpochalError]
) -> None:
    write_sources(tmp_path)
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(error, match=r"source 1 \(Local\) of the mix: "):
        await opened(str(write_mix(tmp_path, ({"Local": "en.bin"}, 1), (location, 1))))


def scheduled(*phases: Any, names: tuple[str, ...] = ("en", "de")) -> str:
    sources = [{"name": name, "location": {"Local": f"{name}.bin"}} for name in names]
    schedule = [phase if isinstance(phase, dict) else {"from": phase[0], "weights": phase[1]} for phase in phases]
    return json.dumps({"sources": sources, "schedule": schedule})


async def test_weights_that_change_leave_out_no_sample_and_repeat_none(tmp_path: Path) -> None:
    write_sources(tmp_path)
    path = tmp_path / "mix.json"
    path.write_text(scheduled((0, {"en": 3, "de": 1}), (40, {"de": 1}), (50, {"en": 1, "de": 1})))
    provider = await opened(str(path))
    rows = (await provider.get_samples(DataIds(0, 69))).rows()[:, 0].tolist()
    assert [row for row in rows if row < 1000] == list(range(30 + 10))
    assert [row - 1000 for row in rows if row >= 1000] == list(range(10 + 10 + 10))
    assert all(row >= 1000 for row in rows[40:50])
    again = (await provider.get_samples(DataIds(45, 55))).rows()[:, 0].tolist()
    assert again == rows[45:56]
    await provider.aclose()


async def test_mix_of_the_same_samples_has_the_same_fingerprint_and_no_other(tmp_path: Path) -> None:
    write_sources(tmp_path)
    path = tmp_path / "scheduled.json"

    async def fingerprint(*phases: Any) -> str:
        path.write_text(scheduled((0, {"en": 1, "de": 1}), *phases))
        provider = await opened(str(path))
        await provider.aclose()
        return provider.fingerprint

    plain = await opened(str(write_mix(tmp_path, ({"Local": "en.bin"}, 1), ({"Local": "de.bin"}, 1))))
    await plain.aclose()
    assert plain.fingerprint == await fingerprint() == await fingerprint((PERIOD, {"en": 2, "de": 2}))
    others = [(100, 2), (101, 2), (100, 3), (PERIOD + 1, 1)]
    found = {await fingerprint((start, {"en": 1, "de": weight})) for start, weight in others}
    assert len(found | {plain.fingerprint}) == 5


BOTH = (0, {"en": 1, "de": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (scheduled((1, {"en": 1, "de": 1})), "phase 0 is from data index 1; allowed: 0"),
        (scheduled(BOTH, (0, {"en": 1})), "phase 1 is from data index 0; allowed: above 0"),
        (scheduled(BOTH, (9, {"en": 1}), (5, {"en": 1})), "phase 2 is from data index 5; allowed: above 9"),
        (scheduled(BOTH, (9, {"fr": 1})), r"schedule\.1\.weights names 'fr'; the sources are 'en', 'de'"),
        (scheduled(BOTH, (9, {"en": 0})), r"schedule\.1\.weights are all 0"),
        (scheduled(BOTH, (9, {"en": -1})), r"schedule\.1\.weights\.en: .*greater than or equal to 0"),
        (scheduled(BOTH, (9, {})), r"schedule\.1\.weights: .*at least 1 item"),
        (scheduled((0, {"en": 1})), "no phase has a weight for 'de'"),
        (scheduled(BOTH, names=("en", "de", "en")), "two sources are named 'en'"),
        (scheduled(BOTH, {"form": 9, "weights": {}}), r"schedule\.1\.from: Field required"),
        (scheduled(BOTH, {"from": "9", "weights": {"en": 1}}), r"schedule\.1\.from: .*valid integer"),
        (scheduled(), "schedule: .*at least 1 item"),
        (scheduled(*((n, {"en": 1, "de": 1}) for n in range(129))), "schedule: .*at most 128 items"),
    ],
)
async def test_schedule_that_contradicts_itself_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write_sources(tmp_path)
    path = tmp_path / "mix.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as refused:
        await opened(str(path))
    assert "mix.json" in str(refused.value)


async def test_source_that_fails_is_named(tmp_path: Path) -> None:
    write_sources(tmp_path)
    provider = await opened(str(write_mix(tmp_path, ({"Local": "en.bin"}, 1), ({"Local": "de.bin"}, 1))))
    (tmp_path / "de.bin").write_bytes(b"x")
    with pytest.raises(CorruptData, match=r"source 1 \(Local\) of the mix: .*de\.bin"):
        await provider.get_samples(DataIds(0, 5))
    await provider.aclose()


async def test_mix_of_more_bytes_than_one_answer_may_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted, "MAX_REQUEST_BYTES", 1000)
    sources = [Weighted(name, DummyDataProvider(DatasetSpec(2, LENGTH)), 1) for name in ("a", "b")]
    provider = WeightedDataProvider(sources)
    assert (await provider.get_samples(DataIds(0, 29))).sample_count == 30
    with pytest.raises(Rejected, match="ask for less"):
        await provider.get_samples(DataIds(0, 49))


async def test_mix_closes_every_source_though_one_fails_at_it() -> None:
    class Stuck(DummyDataProvider):
        async def aclose(self) -> None:
            raise SourceUnavailable("stuck")

    sources = [DummyDataProvider(DatasetSpec(2, 4)), Stuck(DatasetSpec(2, 4)), DummyDataProvider(DatasetSpec(2, 4))]
    mix = WeightedDataProvider([Weighted(str(number), source, 1) for number, source in enumerate(sources)])
    with pytest.raises(SourceUnavailable, match="stuck"):
        await mix.aclose()
    for source in (sources[0], sources[2]):
        with pytest.raises(InternalError):
            await source.get_samples(DataIds(0, 0))


async def test_mix_follows_the_weights_to_which_its_run_has_changed(tmp_path: Path) -> None:
    write_sources(tmp_path)
    place = str(write_mix(tmp_path, ({"Local": "en.bin"}, 1), ({"Local": "de.bin"}, 1)))
    location = {"model__LLM__data_location": {"WeightedHttp": place}}
    changes = [{"at_step": 3, "mix": {"1": 1.0}, "first_batch": 20}]
    state, changed = state_file(**location), state_file(**location, changes=changes)
    plain = await open_provider(state, lambda: "", OWNERS)
    assert isinstance(plain, WeightedDataProvider)
    opened_later = await open_provider(changed, lambda: "", OWNERS)
    assert opened_later.fingerprint == plain.fingerprint, "members agree on the data, whenever they open them"
    first = 20 * state.config.data_indices_per_batch
    before = (await plain.get_samples(DataIds(0, first + 9))).rows()[:, 0].tolist()
    await follow_mix(plain, changed.later_mixes)
    for provider in (plain, opened_later):
        rows = (await provider.get_samples(DataIds(0, first + 9))).rows()[:, 0].tolist()
        assert rows[:first] == before[:first]
        assert rows[first:] == [1000 + first // 2 + number for number in range(10)]
        await follow_mix(provider, state.later_mixes)
        rows = (await provider.get_samples(DataIds(0, first + 9))).rows()[:, 0].tolist()
        assert rows == before, "the change was taken back"
        await provider.aclose()


async def test_change_that_names_another_source_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_sources(tmp_path)
    place = str(write_mix(tmp_path, ({"Local": "en.bin"}, 1), ({"Local": "de.bin"}, 1)))
    location = {"model__LLM__data_location": {"WeightedHttp": place}}
    wrong, right = ({"at_step": step, "mix": {name: 1.0}, "first_batch": step} for step, name in ((3, "fr"), (6, "1")))
    size, found = state_file(**location).config.data_indices_per_batch, []
    for changes in ([wrong, right], [right]):
        provider = await open_provider(state_file(**location, changes=changes), lambda: "", OWNERS)
        found.append((await provider.get_samples(DataIds(0, 9 * size))).rows()[:, 0].tolist())
        await provider.aclose()
    assert found[0] == found[1]
    (left_out,) = [one.__dict__ for one in caplog.records if one.getMessage() == "mix_change_left_out"]
    assert left_out["reason"] == "the mix has no source 'fr'; its sources are '0 (Local)', '1 (Local)'"
