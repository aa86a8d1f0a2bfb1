"""The fields of every document that a client obeys, each with its rule: the list in `docs/document-fields.md`.

The rule kept here: the list is made from the schemas. Where a field's schema is not a rule by itself (a free text, a
number without a bound), a line of `RULES` names one; a field without a rule, and a rule without a field, fail a test.
"""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from epochal.data_providers.mixes.mix_file import MixEntry, ScheduledMix
from epochal.state.messages.requests import ResultsPage

Schema: TypeAlias = Mapping[str, Any]

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("coordinator_client", "data_providers", "run_manager")
"""Packages whose modules parse what a client of a run is sent."""
OTHER_READERS = frozenset(
    {
        "coordinator_client/known_coordinators.py",  # a file of the client's own
        "coordinator_client/round_feed.py",  # only shown, as what the next one reads
        "coordinator_client/viewer_client.py",
        "data_providers/tcp/server.py",  # what a data server is sent
    }
)
"""Modules there that parse something else."""
PARSERS = frozenset({"parse_document", "parse_immutable", "_fetch", "_immutable"})
"""Functions, and methods of a client, whose first argument is the document's class."""
OTHERS: Mapping[str, Any] = {"Mix": ScheduledMix, "MixEntry": MixEntry, "ResultsPage": ResultsPage}
"""Documents with their own parser."""
FOR_OPERATORS = frozenset(
    {
        *(
            "CheckpointRef",
            "DataTicket",
            "EvaluationHistory",
            "FailedData",
            "KeptCheckpoints",
            "LeasedCheck",
            "LeasedReplay",
        ),
        *("LeasedSlice", "ParameterNames", "ProgramToken", "QuarantineRelease", "RenewedLease", "RunStatus"),
    }
)
"""Documents that only commands of the run's own operator ask for."""
SMALL_NUMBER = 2**20
"""A number that its schema bounds by this one or less needs no further rule."""


class Rule(StrEnum):
    """Why a field can do no harm, whatever a coordinator writes into it."""

    CHOICE = "one of a closed list, true or false, or a number with small bounds"
    DIGEST = "a digest, key, seed or ID in hex of one length; bytes under a digest are compared with it"
    COMPARED = "a number that is only counted or compared with others"
    TIMER = "a time; what the client itself does by it has bounds of its own"
    SIZE = "a size; memory and disk are taken as the bytes arrive, below the client's own bounds"
    SHOWN = "a text that is compared or shown to people, with control characters escaped"
    TOKEN = "a secret of the coordinator's, sent back to it or to its data servers, and nowhere else"
    ADDRESS = "leads to an address: checked after it was resolved, at each connection"
    HOST_PART = "a part of a host's name, of letters, digits, hyphens and dots"
    KEY_PART = "a name inside one bucket or repository"
    STORE_ORIGIN = "leads to the run's own object store, with headers of a list"
    PATH = "a path: opened below folders that the owner of the machine allowed"
    PACKAGE = "names installed code: imported if the owner of the machine allowed its package"
    MODEL = (
        "a free table for a model's class, which checks it; the class is of an installed package, and allowed like one"
    )
    COMPUTED = "a parameter of the computation: at worst the client computes in vain, or ends for want of memory"
    OTHER_FIELDS = "values of a few other fields of the state file, checked as these"
    OPERATOR = "kept to the coordinator: a client is not sent it, and ignores it"


_PLACES = ("StateFile.model.LLM.*_location", "Mix.sources[].location", "MixEntry.location")
"""The possible places of a data location."""


def _of_locations(*paths: str) -> tuple[str, ...]:
    return tuple(f"{place}.{path}" for place in _PLACES for path in paths)


RULES: Mapping[Rule, tuple[str, ...]] = {
    Rule.ADDRESS: (
        *_of_locations("Server", "WeightedHttp", "Preprocessed"),
        *_of_locations("Http.location.*Url*", "Http.location.NumberedFiles.url_template", "Http.location.*.endpoint"),
        "StateFile.model.LLM.checkpoint.*.endpoint",
        "StateFile.blobs.origins[]",
        "UploadGrant.url",
    ),
    Rule.PATH: (*_of_locations("Local", "WeightedHttp", "Preprocessed"), "StateFile.model.LLM.checkpoint.Local*"),
    Rule.HOST_PART: (
        *_of_locations("Http.location.*.bucket_name", "Http.location.*.region", "Http.location.*.account_name"),
        "StateFile.model.LLM.checkpoint.*.bucket",
        "StateFile.model.LLM.checkpoint.*.region",
    ),
    Rule.KEY_PART: (
        *_of_locations("Http.location.*.filter_directory", "Http.location.*.container_name"),
        "StateFile.model.LLM.checkpoint.*.prefix",
        "StateFile.model.LLM.checkpoint.*.repo_id",
        "StateFile.model.LLM.checkpoint.*.revision",
        "ModelSpec.base",
    ),
    Rule.STORE_ORIGIN: ("UploadGrant.url", "UploadGrant.headers"),
    Rule.PACKAGE: ("StateFile.packing.task_encoder",),
    Rule.MODEL: ("*.hf", "*.custom"),
    Rule.OTHER_FIELDS: ("StateFile.changes[].values",),
    Rule.TOKEN: ("Challenge.nonce", "Session.session_token", "Session.data_ticket"),
    Rule.TIMER: (
        "*.expires_in_s",
        "Session.client_timeout_s",
        "Standing.rest_s",
        "RunDocument.phase_*_s",
        "StateFile.config.*_time*",
        "StateFile.client.fetch_timeout_s",
        "StateFile.merge.update_wait_s",
    ),
    Rule.SIZE: (
        "*.size_bytes",
        "*.received_bytes",
        "StateFile.client.*_bytes",
        "StateFile.blobs.*_bytes",
        *_of_locations("Http.location.NumberedFiles.num_files"),
    ),
    Rule.SHOWN: (
        "*.adapter.Lora.target_modules[]",
        "*.run_id",
        "RunDocument.lineage",
        "RunDocument.reason",
        "RunDocument.rewound.at_s",
        "RunDocument.data_fingerprint",
        "Standing.result_rejected",
        "Standing.last_miss",
        "DataFailure.reason",
        "Mix.sources[].name",
    ),
    Rule.OPERATOR: ("StateFile.notify.*", "StateFile.progress.*", "StateFile.blobs.store.*"),
    Rule.COMPARED: (
        "Outcome.step",
        "Outcome.attempt",
        "Outcome.entries[].assignment[].*",
        "ResultsPage.step",
        "ResultsPage.attempt",
        "ResultsPage.next",
        "Roster.clients[].share",
        "RunDocument.version",
        "RunDocument.*epoch*",
        "RunDocument.*step*",
        "RunDocument.*cursor",
        "RunDocument.*batches",
        "RunDocument.*_count",
        "RunDocument.round.attempt",
        "RunDocument.round.height",
        "RunDocument.data_indices_applied",
        "Standing.step",
        "Standing.attempt",
        "Standing.missed",
        "UpdateRef.step",
        "OwnOutcome.step",
        "UpdateRef.part_count",
        "WorkList.isolated[].batch_id.*",
        "WorkList.shared[].*",
        "StateFile.config.*clients",
        "StateFile.config.witness_nodes",
        "StateFile.config.total_steps",
        "StateFile.config.checkpoint_every",
        "StateFile.packing.max_failed_samples",
        *_of_locations("Http.location.NumberedFiles.start_index"),
        "Mix.schedule[].*",
        "MixEntry.weight",
    ),
    Rule.COMPUTED: (
        "*.adapter.Lora.alpha",
        "StateFile.config.global_batch_size_*",
        "StateFile.config.data_indices_per_batch",
        "StateFile.model.LLM.max_seq_len",
        "StateFile.model.LLM.cold_start_warmup_steps",
        "StateFile.model.LLM.lr_schedule.*",
        "StateFile.model.LLM.optimizer.*",
        "StateFile.merge.max_abs",
        "StateFile.changes[].*",
        "Outcome.entries[].norm",
        "Outcome.entries[].factor",
        "ResultsPage.results[].norm",
        "RunDocument.round.usual_norm",
        "Welcome.sequence_*",
        "Welcome.mean_bytes",
    ),
}
"""The rule of each field that needs one, by patterns of its name in which `*` represents any characters."""


@dataclass(frozen=True, slots=True)
class DocumentField:
    """One field: the document's class, the dotted path in it, and every schema that its value may have."""

    document: str
    path: str
    schemas: tuple[Schema, ...]

    @property
    def name(self) -> str:
        """Document and path."""
        return f"{self.document}.{self.path}" if self.path else self.document

    @property
    def own_rule(self) -> Rule | None:
        """The rule that the field's schemas are by themselves, if they are one."""
        own = {_own_rule(schema) for schema in self.schemas}
        return own.pop() if len(own) == 1 else None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The field's rules, those that `RULES` names if there are any; none is a mistake."""
        return self.named_rules or (() if self.own_rule is None else (self.own_rule,))

    @property
    def named_rules(self) -> tuple[Rule, ...]:
        """The rules that `RULES` names for the field; a rule of numbers does not apply to a field of free text."""
        found = tuple(rule for rule, patterns in RULES.items() if any(map(self.matches, patterns)))
        return tuple(rule for rule in found if rule not in _OF_NUMBERS or not any(map(_is_free_text, self.schemas)))

    def matches(self, pattern: str) -> bool:
        """Whether a pattern of `RULES` means this field."""
        return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), self.name) is not None


_OF_NUMBERS = frozenset({Rule.COMPARED, Rule.TIMER, Rule.SIZE, Rule.COMPUTED})


def _is_free_text(schema: Schema) -> bool:
    if schema.get("type") == "object":
        within = schema.get("additionalProperties")
        return not isinstance(within, dict) or _is_free_text(within)
    is_bound = any(name in schema for name in ("pattern", "enum", "const"))
    return schema.get("type") not in ("number", "integer", "boolean") and not is_bound


_HEX = re.compile(r"\^\[0-9a-f\]\{\d+\}\$")


def _own_rule(schema: Schema) -> Rule | None:
    if schema.get("type") == "boolean" or "enum" in schema or "const" in schema:
        return Rule.CHOICE
    if _HEX.fullmatch(schema.get("pattern", "")):
        return Rule.DIGEST
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    return Rule.CHOICE if low is not None and high is not None and high <= SMALL_NUMBER else None


def readers() -> list[str]:
    """Return the modules that parse what a client of a run is sent."""
    found = (path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return sorted(place for place in found if place not in OTHER_READERS)


def document_kinds() -> dict[str, Any]:
    """Return the classes of the documents that a client obeys, by name."""
    found = dict(OTHERS)
    for place in readers():
        for call in ast.walk(ast.parse((ROOT / place).read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).removeprefix("self.") in PARSERS:
                kind = call.args[0]
                module = importlib.import_module(place.removesuffix(".py").replace("/", "."))
                if isinstance(kind, ast.Name) and isinstance(vars(module).get(kind.id), type):
                    found[kind.id] = vars(module)[kind.id]
    return {name: found[name] for name in sorted(found.keys() - FOR_OPERATORS)}


def document_fields() -> list[DocumentField]:
    """Return every field of every document that a client obeys."""
    fields: list[DocumentField] = []
    for name, kind in document_kinds().items():
        schema = TypeAdapter(kind).json_schema()
        found: dict[str, list[Schema]] = {}
        for path, leaf in _leaves(schema, schema.get("$defs", {})):
            found.setdefault(path, []).append(leaf)
        fields += [DocumentField(name, path, tuple(leaves)) for path, leaves in found.items()]
    return fields


def _leaves(schema: Schema, known: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """Yield the path and the schema of every value below a schema."""
    if "$ref" in schema:
        yield from _leaves(known[schema["$ref"].rpartition("/")[2]], known)
        return
    if "oneOf" in schema:  # variants, each with a name of its own
        for each in schema["oneOf"]:
            variant = each["$ref"].rpartition("/")[2]
            for path, leaf in _leaves(each, known):
                yield _joined(variant, path), leaf
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _leaves(each, known)
    elif schema.get("type") == "array":
        items = [*schema.get("prefixItems", ()), *([schema["items"]] if isinstance(schema.get("items"), dict) else ())]
        for item in items:
            for path, leaf in _leaves(item, known):
                yield _joined("[]", path), leaf
    elif "properties" in schema:
        for name, each in schema["properties"].items():
            for path, leaf in _leaves(each, known):
                yield _joined(name, path), leaf
    elif schema.get("type") != "null":
        yield "", schema


def _joined(first: str, rest: str) -> str:
    return f"{first}.{rest}" if rest and not rest.startswith("[") else first + rest


def body() -> str:
    """Return the table of all fields, by document."""
    lines: list[str] = []
    fields = document_fields()
    for name in document_kinds():
        lines += [f"### {name}", "", "| field | rule |", "|---|---|"]
        of_document = [field for field in fields if field.document == name]
        lines += [f"| `{field.path}` | {'; '.join(field.rules)} |" for field in of_document]
        lines.append("")
    return "\n".join(lines).rstrip()
