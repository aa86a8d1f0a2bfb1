"""The model's part of `state.toml`, `[model.LLM]`: architecture, checkpoint, learning rate and optimizer."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from epochal.state.config.adapter_table import Adapter, BaseFiles
from epochal.state.config.data_location import BucketName, DataLocation, Endpoint, HeldOutLocation, Region
from epochal.state.config.free_table import WrongEntry, check_free_table
from epochal.state.config.schema import HexDigest, Natural, PathText, Positive, Section, SingleValue, TaggedEnum, Text

MAX_NGRAM_SIZE = 65_536
MAX_HF_CONFIG_BYTES = 256 * 1024
"""Maximum size of a Hugging Face config as JSON."""
MAX_NS_STEPS = 99
"""Maximum number of Newton-Schulz iterations of a step: torch's own limit."""
MAX_CUSTOM_BYTES = 64 * 1024
"""Maximum size of the table of a custom model as JSON."""
TRAINER = "trainer"
"""The key in the table of a custom model that names the trainer to which the model belongs."""

OptionalText = Annotated[str | None, Field(min_length=1, description="a string that is not empty, or no such line")]
ClipNorm = Annotated[float | None, Field(gt=0, description="a number above 0, or no such line")]
Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Beta, Beta], Field(strict=False, description="a list of two numbers from 0 to below 1")]
NgramSize = Annotated[int, Field(ge=1, le=MAX_NGRAM_SIZE)]


def _check_hf_config(config: dict[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    if not isinstance(config.get("model_type"), str):
        raise WrongEntry(("model_type",), "a string: the kind of the model, as transformers names it")
    check_free_table(config, MAX_HF_CONFIG_BYTES)
    return config


HfConfig = Annotated[
    dict[str, Any] | None,
    AfterValidator(_check_hf_config),
    Field(
        description="a table with the keys of a Hugging Face `config.json`, `model_type` among them, "
        f"at most {MAX_HF_CONFIG_BYTES} bytes as JSON"
    ),
]


def _check_custom(table: dict[str, Any] | None) -> dict[str, Any] | None:
    if table is None:
        return None
    if not isinstance(table.get(TRAINER), str) or not table[TRAINER]:
        raise WrongEntry((TRAINER,), "a string that is not empty: the trainer to which the model belongs")
    if ":" in table[TRAINER]:
        raise WrongEntry(
            (TRAINER,),
            'the name under which a package registers the trainer in the entry points "epochal.trainers", not '
            "module:Class: a document names no modules",
        )
    check_free_table(table, MAX_CUSTOM_BYTES)
    return table


CustomTable = Annotated[
    dict[str, Any] | None,
    AfterValidator(_check_custom),
    Field(
        description="a table with a `trainer`, the name of an entry point of a package, and with values of that "
        f"trainer's own, at most {MAX_CUSTOM_BYTES} bytes as JSON"
    ),
]


class Architecture(StrEnum):
    """The kinds of models.

    `EpochalNgram` is Epochal's embedded one, `Custom` that of a trainer from another package; the others are Psyche's.
    """

    EPOCHAL_NGRAM = "EpochalNgram"
    HF_LLAMA = "HfLlama"
    HF_DEEPSEEK = "HfDeepseek"
    HF_AUTO = "HfAuto"
    TORCHTITAN = "Torchtitan"
    CUSTOM = "Custom"


HF_ARCHITECTURES = frozenset({Architecture.HF_LLAMA, Architecture.HF_DEEPSEEK, Architecture.HF_AUTO})
"""The architectures whose size is a Hugging Face config."""


class DataType(StrEnum):
    """The kinds of samples: tokens; texts, which are packed; or texts with images, which is Epochal's addition."""

    PRETRAINING = "Pretraining"
    FINETUNING = "Finetuning"
    MULTIMODAL = "Multimodal"

    @property
    def reads_records(self) -> bool:
        """Whether samples are JSON records, or rows, of any length."""
        return self is not DataType.PRETRAINING


class Ephemeral(Section):
    """The run makes its own initial parameters; its checkpoints are kept with the run."""


class LocalCheckpoint(SingleValue[PathText], variant="Local"):
    """A safetensors file, or a folder in the layout of a Hugging Face repository. Epochal's addition.

    It is on the machine that makes the first checkpoint.
    """

    @property
    def path(self) -> str:
        return self.root


class DummyCheckpoint(Section, variant="Dummy"):
    """Psyche's model without arithmetic: a small stand-in, whatever the architecture. The repository is not read."""

    repo_id: str = ""
    revision: OptionalText = None


class Hub(Section):
    """A repository on the Hugging Face Hub."""

    repo_id: Text
    revision: OptionalText = None


class P2P(Hub):
    """The run's own checkpoint; the repository is where its first parameters come from."""


OptionalRegion = Annotated[
    Region | None, Field(description='the name of a region, such as "eu-west-1", or no such line')
]


class Gcs(Section):
    """A Google Cloud Storage bucket."""

    bucket: BucketName
    prefix: OptionalText = None


class P2PGcs(Gcs):
    """The run's own checkpoint; the bucket is where its first parameters come from."""


class S3Checkpoint(Section, variant="S3"):
    """A bucket of S3, or of a store that speaks its protocol. Epochal's addition.

    Attributes:
        region: None takes `AWS_REGION`, or us-east-1.
        endpoint: the server's URL, where it is not Amazon's.
    """

    bucket: BucketName
    prefix: OptionalText = None
    region: OptionalRegion = None
    endpoint: Annotated[
        Endpoint | None,
        Field(description="an http:// or https:// URL of a host, maybe a port, and maybe a path, or no such line"),
    ] = None


Checkpoint = Annotated[
    Ephemeral | LocalCheckpoint | DummyCheckpoint | Hub | P2P | Gcs | P2PGcs | S3Checkpoint, TaggedEnum()
]


class Constant(Section):
    """Linear warm-up from `warmup_init_lr`, then `base_lr`. Steps are optimizer steps."""

    base_lr: float
    warmup_init_lr: float
    warmup_steps: Natural


class Linear(Section):
    """Warm-up, then a straight line to `final_lr` at optimizer step `total_steps`."""

    base_lr: float
    warmup_init_lr: float
    warmup_steps: Natural
    total_steps: Natural
    final_lr: float


class Cosine(Section):
    """Warm-up, then half a cosine to `final_lr` at optimizer step `total_steps`."""

    base_lr: float
    warmup_init_lr: float
    warmup_steps: Natural
    total_steps: Natural
    final_lr: float


class WarmupStableDecay(Section):
    """Warm-up, `base_lr` for `stable_steps`, half a cosine, a straight line; then the last value."""

    base_lr: float
    warmup_init_lr: float
    warmup_steps: Natural
    stable_steps: Natural
    cosine_decay_steps: Natural
    cosine_decay_final_lr: float
    linear_decay_steps: Natural
    linear_decay_final_lr: float


LrSchedule = Annotated[Constant | Linear | Cosine | WarmupStableDecay, TaggedEnum()]


class DummyOptimizer(Section, variant="Dummy"):
    """No optimizer step; for trainers that do no arithmetic."""


class AdamW(Section):
    """AdamW (Loshchilov and Hutter, 2019) as the clients' inner optimizer.

    Attributes:
        betas: decay of the first and of the second moment.
        weight_decay: decoupled decay, a factor of the learning rate.
        eps: added to the root of the second moment.
        clip_grad_norm: the largest L2 norm of a gradient; None does not clip.
    """

    betas: Betas
    weight_decay: Annotated[float, Field(ge=0)]
    eps: Annotated[float, Field(gt=0)]
    clip_grad_norm: ClipNorm = None


class Muon(Section):
    """Muon (Jordan, 2024, https://kellerjordan.github.io/posts/muon/) for hidden matrices, AdamW for all other tensors.

    A hidden matrix is a tensor of two dimensions that is neither an embedding nor the output layer. Its step has the
    learning rate of the schedule times 0.2 √(larger dimension), with which steps are as long as AdamW's (Liu et al.,
    2025, https://arxiv.org/abs/2502.16982).

    Attributes:
        momentum: decay of the one moment of a hidden matrix; Nesterov's.
        weight_decay: decoupled decay of matrices, a factor of the learning rate.
        ns_steps: Newton-Schulz iterations, which make the singular values of a step nearly equal.
        adamw_lr_ratio: AdamW's learning rate divided by the schedule's.
        betas, eps: as in `AdamW`, for the other tensors.
        clip_grad_norm: the largest L2 norm of a gradient, of all tensors together; None does not clip.
    """

    momentum: Beta
    weight_decay: Annotated[float, Field(ge=0)]
    ns_steps: Annotated[int, Field(ge=1, le=MAX_NS_STEPS)] = 5
    adamw_lr_ratio: Annotated[float, Field(gt=0)] = 1.0
    betas: Betas = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    clip_grad_norm: ClipNorm = None


InnerOptimizer = AdamW | Muon
"""The optimizers with which clients take local steps."""


class Distro(Section):
    """DisTrO: compressed updates (Psyche's optimizer)."""

    clip_grad_norm: ClipNorm = None
    weight_decay: Annotated[float | None, Field(ge=0, description="a number of at least 0, or no such line")] = None
    compression_decay: float
    compression_topk: Positive
    compression_chunk: Positive
    quantize_1bit: bool


Optimizer = Annotated[DummyOptimizer | AdamW | Muon | Distro, TaggedEnum()]


class NgramConfig(Section):
    """The embedded model's size: a neural n-gram over `context` earlier tokens. Epochal's addition.

    Attributes:
        context: earlier tokens that predict the next.
        embedding: numbers per token.
        hidden: width of the hidden layer.
    """

    context: NgramSize = 8
    embedding: NgramSize = 16
    hidden: NgramSize = 64


class ModelSpec(Section):
    """The model that is trained: everything on which its parameters' names and shapes depend.

    Attributes:
        ngram: the size, if the architecture is `EpochalNgram`.
        hf: the Hugging Face config, if the architecture is one of `HF_ARCHITECTURES`; None if it is not known yet.
        custom: the table of the trainer to which the model belongs, if the architecture is `Custom`.
        dummy: whether the model is Psyche's without arithmetic (`checkpoint = "Dummy"`), whatever the architecture.
        adapter: the tensors that are trained beside a base, whose config is `hf`; None if the whole model is trained.
        base: the files of the base's weights; None without an adapter, and before the run's first checkpoint.
    """

    architecture: Annotated[Architecture, Field(strict=False)]
    ngram: NgramConfig = NgramConfig()
    hf: HfConfig = None
    custom: CustomTable = None
    dummy: bool = False
    adapter: Adapter = None
    base: BaseFiles = None

    @property
    def is_complete(self) -> bool:
        """Whether names and shapes of the parameters follow from it. If not, the config is at the run's checkpoint."""
        return self.dummy or self.architecture not in HF_ARCHITECTURES or self.hf is not None

    def completes(self, other: "ModelSpec") -> bool:
        """Whether it is complete, and agrees with the other one in every field that the other one has."""
        known = self if other.is_complete else self.model_copy(update={"hf": None})
        if self.adapter is not None and self.base is not None and other.base is None:
            known = known.model_copy(update={"base": None})
        return self.is_complete and (self.adapter is None) == (self.base is None) and known == other

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of the state file that say how the model computes, by name; empty where there is no such table."""
        adapter = {} if self.adapter is None else {self.adapter.variant: self.adapter.model_dump()}
        return {"hf": self.hf or {}, "custom": self.custom or {}, "adapter": adapter}

    @property
    def whole(self) -> "ModelSpec":
        """The spec of the base as a model that is trained as a whole; itself without an adapter."""
        return self.model_copy(update={"adapter": None, "base": None})

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain JSON values, with every default: the content of the run's model document."""
        return self.model_dump(mode="json")


class LlmConfig(Section):
    """`[model.LLM]`: the model, its data and its inner optimizer.

    Attributes:
        max_seq_len: tokens of one sample, and so of one data index.
        cold_start_warmup_steps: rounds over which the learning rate grows after a cold start
            (`epochal.state.schedule`).
        held_out_location: data that are not trained on, for evaluations and scores. Epochal's addition.
        adapter: what is trained beside the model at `checkpoint`; None trains all of that. Epochal's addition.
        tokenizer: SHA-256 of the tokenizer of the run's data. Epochal's addition.
    """

    max_seq_len: Positive
    cold_start_warmup_steps: Natural = 0
    architecture: Annotated[Architecture, Field(strict=False)]
    data_type: Annotated[DataType, Field(strict=False)]
    data_location: DataLocation
    held_out_location: HeldOutLocation = None
    checkpoint: Checkpoint
    lr_schedule: LrSchedule
    optimizer: Optimizer
    ngram: NgramConfig = NgramConfig()
    hf: HfConfig = None
    custom: CustomTable = None
    adapter: Adapter = None
    tokenizer: Annotated[
        HexDigest | None, Field(description="the 64 lowercase hex characters that `epochal prepare` shows")
    ] = None

    @property
    def spec(self) -> ModelSpec:
        """The part that describes the model, as far as the file does; `checkpoint` may name where the rest is."""
        is_dummy = isinstance(self.checkpoint, DummyCheckpoint)
        kind = self.architecture
        return ModelSpec(
            architecture=kind,
            ngram=self.ngram,
            hf=self.hf,
            custom=self.custom,
            dummy=is_dummy,
            adapter=None if is_dummy else self.adapter,
        )

    @property
    def is_made_from_seed(self) -> bool:
        """Whether the run's first parameters are made, and not read from where `checkpoint` says."""
        return isinstance(self.checkpoint, Ephemeral | DummyCheckpoint)
