"""A preparation that is complete already: whether the same command still means the same.

The rule kept here: nothing is done, and no change is passed over in silence.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.sources.hub_dataset import HUB_SCHEME
from epochal.state.errors import InvalidInput
from epochal.tools.prepare.prepare_options import DATA_ADDRESS, PrepareOptions
from epochal.tools.prepare.publishing import Preparation, published
from epochal.tools.prepare.sources import Sources

STATE_FILE = "state.toml"


def complete_before(folder: Path, places: Sequence[str], options: PrepareOptions) -> Preparation:
    """Return the complete preparation of a folder, which was made from the same places with the same options.

    The names and sizes of the sources' files are compared with those in the manifest, but for datasets of the Hub,
    which would be downloaded for it, and for sources of which a server does not answer.

    Raises:
        Rejected: a server has a source no more, or refuses it.
        InvalidInput: the sources or the data address are others than those of the preparation; the user's fault. The
            message says how to make it again.
    """
    made = replace(published(folder), was_complete=True)
    if change := change_of_sources(made.counts, places, options, folder):
        raise InvalidInput(
            f"{folder} holds a complete preparation, and {change}. Name another folder, or remove "
            f"{' and '.join(f'{folder}/{split}' for split in made.shards)} to make it again",
            path=str(folder),
        )
    address = _address_in(folder / STATE_FILE)
    if options.data_address not in (DATA_ADDRESS, address) and address is not None:
        raise InvalidInput(
            f"{folder} holds a complete preparation, whose {STATE_FILE} names the data server {address}: write "
            f"{options.data_address} there, instead of --data-address",
            path=str(folder),
        )
    return made


def change_of_sources(counts: Mapping[str, Any], places: Sequence[str], options: PrepareOptions, folder: Path) -> str:
    """Return a sentence on the first change of the sources that a manifest counts, or ""."""
    listed = [place for place in places if not place.startswith(f"{HUB_SCHEME}://")]
    if not listed:
        return ""
    try:
        with Sources.open(listed, options.text_suffixes, folder) as sources:
            now = {file.name: file.size_bytes for file in sources.files}
    except SourceUnavailable:  # a server: what it holds is not known now
        return ""
    before = {name: size for name, size in counts["files"].items() if not name.startswith(f"{HUB_SCHEME}://")}
    is_whole = counts["file_count"] == len(counts["files"])
    for name in [*now, *before] if is_whole else before:
        if name not in before:
            return f"{name} is new since then"
        if name not in now:
            return f"{name} is no longer among the sources"
        if now[name] != before[name]:
            return f"{name} had {before[name]} bytes and has {now[name]}"
    if not is_whole and len(listed) == len(places) and len(now) != counts["file_count"]:
        return f"the sources had {counts['file_count']} files and have {len(now)}"
    return ""


def _address_in(state_file: Path) -> Any:
    """Return the data server's address in a `state.toml`; None if it has none, or cannot be read."""
    try:
        return tomllib.loads(state_file.read_text("utf-8"))["model"]["LLM"]["data_location"]["Server"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
