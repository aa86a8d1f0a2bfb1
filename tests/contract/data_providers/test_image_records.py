"""Samples of text and images are the same, byte for byte, over HTTP and TCP, compressed, in tars and in parquet."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.batching.chunking.datums import Datum, ImageChunk
from epochal.batching.packing.datum_rows import DatumRows
from epochal.batching.packing.samples import raw_samples
from epochal.data_providers.fetcher import FetchSettings
from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_described, open_location, served_shape
from epochal.data_providers.protocol import MAX_REQUEST_BYTES, DatasetSpec
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_file import parse_data_config
from epochal.state.config.data_location import Preprocessed
from epochal.state.config.data_location import Server as DataServerPlace
from epochal.state.intervals import DataIds
from epochal.state.reader_limits import MAX_LINE_BYTES
from tests.support.data.image_samples import image, pointer, sample, tokens, write_samples
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, http_server
from tests.support.servers.data_server import HOST, serving

SAMPLES = [
    sample(image(100 + number), pointer(f"é/{number}.png"), tokens(number, 7), weights=[0.5, number])
    for number in range(9)
]


async def datums_at(location: Any) -> list[Datum]:
    options = OpenOptions("run", lambda: "good", OWNERS, packs=True)
    provider = await open_location(location, DatasetSpec(2, 64), options)
    assert provider.sequence_count is not None
    rows = DatumRows(64, None)
    found: list[Datum] = []
    for data_ids in (DataIds(0, 3), DataIds(4, provider.sequence_count - 1)):
        rows.take(raw_samples(await provider.get_samples(data_ids), iter(data_ids)))
        batch = rows.next_row()
        assert batch is not None
        found += batch.datums
    await provider.aclose()
    return found


def plain(datum: Datum) -> Any:
    losses = {name: np.asarray(value.data).tolist() for name, value in datum.loss_fn_inputs.items()}
    images = [chunk for chunk in datum.model_input.chunks if not hasattr(chunk, "tokens")]
    texts = [list(getattr(chunk, "tokens", ())) for chunk in datum.model_input.chunks]
    return images, texts, losses


def write_tar(path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, record in enumerate(SAMPLES):
            body = json.dumps(record).encode()
            member = tarfile.TarInfo(f"{number:03}.json")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return path


def write_parquet(path: Path) -> Path:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SAMPLES), path)
    return path


async def test_samples_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    lines = write_samples(tmp_path / "a" / "train.jsonl", SAMPLES)
    (tmp_path / "a.jsonl").write_bytes(lines.read_bytes())
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    places: list[Any] = [lines.parent, packed, write_tar(tmp_path / "a.tar"), write_parquet(tmp_path / "a.parquet")]
    wanted = [plain(datum) for datum in await datums_at(parse_location(str(lines)))]
    assert [len(images[0].data) for images, _, _ in wanted if isinstance(images[0], ImageChunk)] == [*range(100, 109)]
    async with http_server(FileServer(tmp_path)) as url:
        places += [f"{url}/a.jsonl", f"{url}/a.jsonl.gz", f"{url}/a.tar"]
        for place in places:
            location = Preprocessed(str(place)) if str(place).endswith("parquet") else parse_location(str(place))
            assert [plain(datum) for datum in await datums_at(location)] == wanted, place
    config = parse_data_config('dir = "a"\n', "data.toml")
    served = await open_described(config, tmp_path)
    async with serving(served, spec=served_shape(config, served)) as (_, address):
        server = DataServerPlace(f"{HOST}:{address.port}")
        assert [plain(datum) for datum in await datums_at(server)] == wanted
    await served.aclose()


@pytest.mark.parametrize("length", [1, 4096])
def test_request_for_the_largest_samples_with_images_is_within_the_bound(length: int) -> None:
    state = state_file(
        model__LLM__architecture="Custom",
        model__LLM__custom={"trainer": "shapes"},
        model__LLM__data_type="Multimodal",
        model__LLM__max_seq_len=length,
    )
    at_a_time = FetchSettings.of(state).samples_per_request
    assert 1 <= at_a_time <= MAX_REQUEST_BYTES // (2 * MAX_LINE_BYTES)
