"""The public API: the names for building data providers, task encoders, trainers and training loops.

    import epochal

    should_load, local_shards = epochal.compute_batch_size(mesh)

A name is imported from the module that defines it when it is first used, so `import epochal` alone takes no time.
`docs/reference.md` describes every name. The modules behind them may change without notice.
"""

# ruff: noqa: I001 (`name as name` marks an exported name; one import for each would be three times as long)
import importlib

TYPE_CHECKING = False  # not from `typing`, which would take longer to import than this module
if TYPE_CHECKING:  # for editors and type checkers: the names of `_EXPORTS` as imports
    # fmt: off
    from epochal.batching.chunking.column_chunks import ColumnChunk as ColumnChunk, chunk_columns as chunk_columns
    from epochal.batching.chunking.datums import (
        Datum as Datum, EncodedTextChunk as EncodedTextChunk, ImageAssetPointerChunk as ImageAssetPointerChunk,
        ImageChunk as ImageChunk, ModelInput as ModelInput, TensorData as TensorData,
    )
    from epochal.batching.chunking.policies import (
        Chunk as Chunk, ChunkEnd as ChunkEnd, ChunkLimits as ChunkLimits, ChunkPolicy as ChunkPolicy,
        chunk_data as chunk_data, exact as exact,
    )
    from epochal.batching.mesh.detect import compute_batch_size as compute_batch_size, layout_of_mesh as layout_of_mesh
    from epochal.batching.mesh.jax_mesh import global_rows as global_rows
    from epochal.batching.mesh.layout import (
        MeshLayout as MeshLayout, ProcessLoading as ProcessLoading, parse_mesh as parse_mesh,
        spread_over as spread_over,
    )
    from epochal.batching.mesh.mesh_rows import (
        GlobalBatch as GlobalBatch, RowArrays as RowArrays, RowReader as RowReader, global_batches as global_batches,
        loaded_indices as loaded_indices,
    )
    from epochal.batching.mesh.torch_mesh import RowBroadcast as RowBroadcast
    from epochal.batching.micro_batches import Example as Example
    from epochal.batching.packing.packer import Packer as Packer, PackingCounts as PackingCounts, packed as packed
    from epochal.batching.packing.samples import EncodedSample as EncodedSample, RawSample as RawSample
    from epochal.batching.packing.task_encoder import (
        EncoderContext as EncoderContext, SkipSample as SkipSample, TaskEncoder as TaskEncoder, stateless as stateless,
    )
    from epochal.batching.round_plan import RoundPlan as RoundPlan
    from epochal.coordinator_client.http import CoordinatorClient as CoordinatorClient
    from epochal.data_providers.fetcher import (
        BatchReceiver as BatchReceiver, DataFetcher as DataFetcher, FetchSettings as FetchSettings,
    )
    from epochal.data_providers.providers.local import LocalDataProvider as LocalDataProvider
    from epochal.data_providers.open_data import open_provider as open_provider
    from epochal.data_providers.order import DataFile as DataFile, DataOrder as DataOrder
    from epochal.data_providers.protocol import (
        CorruptData as CorruptData, DataProvider as DataProvider, DatasetSpec as DatasetSpec,
        IGNORED_LABEL as IGNORED_LABEL, OutOfRange as OutOfRange, Rejected as Rejected,
        SourceUnavailable as SourceUnavailable, TokenBatch as TokenBatch,
    )
    from epochal.data_providers.providers.ranged import RangedDataProvider as RangedDataProvider
    from epochal.data_providers.sources.byte_source import ByteSource as ByteSource, SourceFile as SourceFile
    from epochal.remote.connection import (
        RunConnection as RunConnection, RunWentBack as RunWentBack, connect as connect,
    )
    from epochal.remote.history_arrays import HistoryArrays as HistoryArrays
    from epochal.remote.sampling import Sample as Sample
    from epochal.remote.run_local import LocalTraining as LocalTraining, run_local as run_local
    from epochal.state.documents import RunDocument as RunDocument
    from epochal.state.messages.evaluation_reports import Evaluation as Evaluation
    from epochal.state.messages.history_rows import (
        ClientFigures as ClientFigures, Moment as Moment, RoundDetail as RoundDetail, RoundFigures as RoundFigures,
    )
    from epochal.state.messages.member_rows import (
        MemberColumns as MemberColumns, MemberDetail as MemberDetail, MemberFigures as MemberFigures,
        MembersPage as MembersPage,
    )
    from epochal.state.messages.requests import RunStatus as RunStatus
    from epochal.state.phase_names import RunState as RunState
    from epochal.state.shown.explanation import SpeedExplanation as SpeedExplanation
    from epochal.tools.plan.scenario import parse_clients as parse_clients
    from epochal.tools.plan.planner import plan_run as plan_run
    from epochal.tools.plan.plans import Plan as Plan, PlanOptions as PlanOptions
    from epochal.state.round_model import ClientGroup as ClientGroup, Link as Link, Links as Links
    from epochal.tools.prepare.prepare_options import PrepareOptions as PrepareOptions
    from epochal.tools.prepare.pipeline import PrepareProgress as PrepareProgress, prepare as prepare
    from epochal.tools.prepare.publishing import Preparation as Preparation
    from epochal.tools.prepare.text_tokenizer import TokenizerIdentity as TokenizerIdentity
    from epochal.runtime.retry import RetryPolicy as RetryPolicy, system_jitter as system_jitter
    from epochal.state.config.model_table import ModelSpec as ModelSpec
    from epochal.state.config.state_file import (
        PackingConfig as PackingConfig, StateFile as StateFile, parse_state as parse_state,
    )
    from epochal.state.errors import (
        CoordinatorUnreachable as CoordinatorUnreachable, DataError as DataError, Desync as Desync,
        EpochalError as EpochalError, InternalError as InternalError, InvalidConfig as InvalidConfig,
        InvalidDocument as InvalidDocument, InvalidInput as InvalidInput, InvalidResult as InvalidResult,
        Mistake as Mistake, Refused as Refused, StoreConflict as StoreConflict, StoreFailed as StoreFailed,
        TrainerFailed as TrainerFailed, Unsupported as Unsupported,
    )
    from epochal.state.intervals import BatchId as BatchId, DataIds as DataIds
    from epochal.state.refusals import Refusal as Refusal
    from epochal.trainers.learner import (
        InnerState as InnerState, Learner as Learner, Loss as Loss, Model as Model,
    )
    from epochal.trainers.packages import TrainerSetup as TrainerSetup
    from epochal.trainers.protocol import TrainedRound as TrainedRound, Trainer as Trainer
    from epochal.trainers.torch_task import TorchTask as TorchTask
    # fmt: on

__version__ = "0.1.0"

_EXPORTS = {
    "epochal.data_providers.protocol": (
        "DataProvider DatasetSpec TokenBatch IGNORED_LABEL SourceUnavailable CorruptData OutOfRange Rejected"
    ),
    "epochal.data_providers.order": "DataFile DataOrder",
    "epochal.data_providers.sources.byte_source": "ByteSource SourceFile",
    "epochal.data_providers.providers.ranged": "RangedDataProvider",
    "epochal.data_providers.providers.local": "LocalDataProvider",
    "epochal.data_providers.open_data": "open_provider",
    "epochal.data_providers.fetcher": "DataFetcher FetchSettings BatchReceiver",
    "epochal.remote.connection": "connect RunConnection RunWentBack",
    "epochal.remote.history_arrays": "HistoryArrays",
    "epochal.remote.sampling": "Sample",
    "epochal.remote.run_local": "run_local LocalTraining",
    "epochal.state.messages.requests": "RunStatus",
    "epochal.state.phase_names": "RunState",
    "epochal.state.messages.history_rows": "RoundFigures RoundDetail ClientFigures Moment",
    "epochal.state.shown.explanation": "SpeedExplanation",
    "epochal.state.messages.member_rows": "MembersPage MemberColumns MemberFigures MemberDetail",
    "epochal.state.messages.evaluation_reports": "Evaluation",
    "epochal.state.documents": "RunDocument",
    "epochal.tools.prepare.pipeline": "prepare PrepareProgress",
    "epochal.tools.prepare.prepare_options": "PrepareOptions",
    "epochal.tools.prepare.publishing": "Preparation",
    "epochal.tools.prepare.text_tokenizer": "TokenizerIdentity",
    "epochal.state.round_model": "ClientGroup Link Links",
    "epochal.tools.plan.planner": "plan_run",
    "epochal.tools.plan.plans": "Plan PlanOptions",
    "epochal.tools.plan.scenario": "parse_clients",
    "epochal.batching.packing.samples": "RawSample EncodedSample",
    "epochal.batching.packing.task_encoder": "TaskEncoder EncoderContext SkipSample stateless",
    "epochal.batching.packing.packer": "Packer PackingCounts packed",
    "epochal.batching.mesh.detect": "compute_batch_size layout_of_mesh",
    "epochal.batching.mesh.layout": "MeshLayout ProcessLoading parse_mesh spread_over",
    "epochal.batching.mesh.mesh_rows": "GlobalBatch RowArrays RowReader global_batches loaded_indices",
    "epochal.batching.mesh.jax_mesh": "global_rows",
    "epochal.batching.mesh.torch_mesh": "RowBroadcast",
    "epochal.batching.chunking.datums": (
        "Datum ModelInput EncodedTextChunk ImageChunk ImageAssetPointerChunk TensorData"
    ),
    "epochal.batching.chunking.policies": "Chunk ChunkEnd ChunkLimits ChunkPolicy chunk_data exact",
    "epochal.batching.chunking.column_chunks": "ColumnChunk chunk_columns",
    "epochal.batching.round_plan": "RoundPlan",
    "epochal.trainers.protocol": "Trainer TrainedRound",
    "epochal.trainers.torch_task": "TorchTask",
    "epochal.trainers.packages": "TrainerSetup",
    "epochal.trainers.learner": "Learner Model Loss InnerState",
    "epochal.batching.micro_batches": "Example",
    "epochal.coordinator_client.http": "CoordinatorClient",
    "epochal.runtime.retry": "RetryPolicy system_jitter",
    "epochal.state.config.state_file": "StateFile PackingConfig parse_state",
    "epochal.state.config.model_table": "ModelSpec",
    "epochal.state.intervals": "BatchId DataIds",
    "epochal.state.errors": (
        "EpochalError InvalidInput InvalidConfig Mistake InvalidDocument InvalidResult Unsupported Refused "
        "DataError CoordinatorUnreachable Desync StoreFailed StoreConflict TrainerFailed InternalError"
    ),
    "epochal.state.refusals": "Refusal",
}
"""The names that each module exports, in the order of `docs/reference.md`."""

MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = ["__version__", *MODULE_OF]

if not TYPE_CHECKING:  # type checkers would take this to allow every name

    def __getattr__(name):
        if name not in MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
