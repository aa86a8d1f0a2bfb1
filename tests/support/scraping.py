"""Reading a program's metrics as Prometheus does: by the parsers of its own client library."""

from dataclasses import dataclass

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a program showed at one moment.

    Attributes:
        families: the project's own metrics by name, without the suffix of their type.
    """

    content_type: str
    families: dict[str, Metric]

    def total(self, sample: str, **labels: str) -> float:
        """Return the sum over the samples of this name that have these labels."""
        return sum(
            found.value
            for family in self.families.values()
            for found in family.samples
            if found.name == sample and labels.items() <= found.labels.items()
        )


async def scrape(url: str, accept: str = "text/plain") -> Scrape:
    """Read a `/metrics` in the format that `accept` names."""
    async with httpx.AsyncClient() as http:
        answer = (await http.get(url, headers={"Accept": accept})).raise_for_status()
    parse = parse_openmetrics if accept == OPENMETRICS else parse_text
    families = {family.name: family for family in parse(answer.text) if family.name.startswith("epochal_")}
    return Scrape(answer.headers["content-type"], families)
