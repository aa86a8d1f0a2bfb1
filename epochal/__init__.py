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
    from batching.chunking.columns import ColumnChunk as ColumnChunk, chunk_columns as chunk_columns
    from batching.chunking.datums import (
        Datum as Datum, EncodedTextChunk as EncodedTextChunk, ImageAssetPointerChunk as ImageAssetPointerChunk,
        ImageChunk as ImageChunk, ModelInput as ModelInput, TensorData as TensorData,
    )
    from batching.chunking.policies import (
        Chunk as Chunk, ChunkEnd as ChunkEnd, ChunkLimits as ChunkLimits, ChunkPolicy as ChunkPolicy,
        chunk_data as chunk_data, exact as exact,
    )
    from batching.mesh.detect import compute_batch_size as compute_batch_size, layout_of_mesh as layout_of_mesh
    from batching.mesh.jax_mesh import global_rows as global_rows
    from batching.mesh.layout import (
        MeshLayout as MeshLayout, ProcessLoading as ProcessLoading, parse_mesh as parse_mesh,
        spread_over as spread_over,
    )
    from batching.mesh.rows import (
        GlobalBatch as GlobalBatch, RowArrays as RowArrays, RowReader as RowReader, global_batches as global_batches,
        loaded_indices as loaded_indices,
    )
    from batching.mesh.torch_mesh import RowBroadcast as RowBroadcast
    from batching.micro_batches import Example as Example
    from batching.packing.packer import Packer as Packer, PackingCounts as PackingCounts, packed as packed
    from batching.packing.samples import EncodedSample as EncodedSample, RawSample as RawSample
    from batching.packing.task_encoder import (
        EncoderContext as EncoderContext, SkipSample as SkipSample, TaskEncoder as TaskEncoder, stateless as stateless,
    )
    from batching.round_plan import RoundPlan as RoundPlan
    from coordinator_client.http import CoordinatorClient as CoordinatorClient
    from data_providers.fetcher import (
        BatchReceiver as BatchReceiver, DataFetcher as DataFetcher, FetchSettings as FetchSettings,
    )
    from data_providers.local import LocalDataProvider as LocalDataProvider
    from data_providers.opening import open_provider as open_provider
    from data_providers.order import DataFile as DataFile, DataOrder as DataOrder
    from data_providers.protocol import (
        CorruptData as CorruptData, DataProvider as DataProvider, DatasetSpec as DatasetSpec,
        IGNORED_LABEL as IGNORED_LABEL, OutOfRange as OutOfRange, Rejected as Rejected,
        SourceUnavailable as SourceUnavailable, TokenBatch as TokenBatch,
    )
    from data_providers.ranged import RangedDataProvider as RangedDataProvider
    from data_providers.sources.protocol import ByteSource as ByteSource, SourceFile as SourceFile
    from epochal.remote.connection import (
        RunConnection as RunConnection, RunWentBack as RunWentBack, connect as connect,
    )
    from epochal.remote.history_arrays import HistoryArrays as HistoryArrays
    from epochal.remote.local import LocalTraining as LocalTraining, run_local as run_local
    from epochal.planning.described import ClientGroup as ClientGroup, Link as Link, parse_clients as parse_clients
    from epochal.planning.planner import plan_run as plan_run
    from epochal.planning.plans import Plan as Plan, PlanOptions as PlanOptions
    from epochal.planning.played_run import Links as Links
    from epochal.preparation.options import PrepareOptions as PrepareOptions
    from epochal.preparation.preparing import PrepareProgress as PrepareProgress, prepare as prepare
    from epochal.preparation.publishing import Preparation as Preparation
    from epochal.preparation.text_tokenizer import TokenizerIdentity as TokenizerIdentity
    from runtime.retry import RetryPolicy as RetryPolicy, system_jitter as system_jitter
    from state.config.model import ModelSpec as ModelSpec
    from state.config.state_file import (
        PackingConfig as PackingConfig, StateFile as StateFile, parse_state as parse_state,
    )
    from state.errors import (
        CoordinatorUnreachable as CoordinatorUnreachable, DataError as DataError, Desync as Desync,
        EpochalError as EpochalError, InternalError as InternalError, InvalidConfig as InvalidConfig,
        InvalidDocument as InvalidDocument, InvalidInput as InvalidInput, InvalidResult as InvalidResult,
        Mistake as Mistake, Refused as Refused, StoreConflict as StoreConflict, StoreFailed as StoreFailed,
        TrainerFailed as TrainerFailed, Unsupported as Unsupported,
    )
    from state.intervals import BatchId as BatchId, DataIds as DataIds
    from state.refusals import Refusal as Refusal
    from trainers.learner import (
        InnerState as InnerState, Learner as Learner, Loss as Loss, LossOptions as LossOptions, Model as Model,
    )
    from trainers.packages import TrainerSetup as TrainerSetup
    from trainers.protocol import TrainedRound as TrainedRound, Trainer as Trainer
    from trainers.torch_task import TorchTask as TorchTask
    # fmt: on

__version__ = "0.1.0"

_EXPORTS = {
    "data_providers.protocol": (
        "DataProvider DatasetSpec TokenBatch IGNORED_LABEL SourceUnavailable CorruptData OutOfRange Rejected"
    ),
    "data_providers.order": "DataFile DataOrder",
    "data_providers.sources.protocol": "ByteSource SourceFile",
    "data_providers.ranged": "RangedDataProvider",
    "data_providers.local": "LocalDataProvider",
    "data_providers.opening": "open_provider",
    "data_providers.fetcher": "DataFetcher FetchSettings BatchReceiver",
    "epochal.remote.connection": "connect RunConnection RunWentBack",
    "epochal.remote.history_arrays": "HistoryArrays",
    "epochal.remote.local": "run_local LocalTraining",
    "epochal.preparation.preparing": "prepare PrepareProgress",
    "epochal.preparation.options": "PrepareOptions",
    "epochal.preparation.publishing": "Preparation",
    "epochal.preparation.text_tokenizer": "TokenizerIdentity",
    "epochal.planning.planner": "plan_run",
    "epochal.planning.plans": "Plan PlanOptions",
    "epochal.planning.played_run": "Links",
    "epochal.planning.described": "ClientGroup Link parse_clients",
    "batching.packing.samples": "RawSample EncodedSample",
    "batching.packing.task_encoder": "TaskEncoder EncoderContext SkipSample stateless",
    "batching.packing.packer": "Packer PackingCounts packed",
    "batching.mesh.detect": "compute_batch_size layout_of_mesh",
    "batching.mesh.layout": "MeshLayout ProcessLoading parse_mesh spread_over",
    "batching.mesh.rows": "GlobalBatch RowArrays RowReader global_batches loaded_indices",
    "batching.mesh.jax_mesh": "global_rows",
    "batching.mesh.torch_mesh": "RowBroadcast",
    "batching.chunking.datums": "Datum ModelInput EncodedTextChunk ImageChunk ImageAssetPointerChunk TensorData",
    "batching.chunking.policies": "Chunk ChunkEnd ChunkLimits ChunkPolicy chunk_data exact",
    "batching.chunking.columns": "ColumnChunk chunk_columns",
    "batching.round_plan": "RoundPlan",
    "trainers.protocol": "Trainer TrainedRound",
    "trainers.torch_task": "TorchTask",
    "trainers.packages": "TrainerSetup",
    "trainers.learner": "Learner Model Loss LossOptions InnerState",
    "batching.micro_batches": "Example",
    "coordinator_client.http": "CoordinatorClient",
    "runtime.retry": "RetryPolicy system_jitter",
    "state.config.state_file": "StateFile PackingConfig parse_state",
    "state.config.model": "ModelSpec",
    "state.intervals": "BatchId DataIds",
    "state.errors": (
        "EpochalError InvalidInput InvalidConfig Mistake InvalidDocument InvalidResult Unsupported Refused "
        "DataError CoordinatorUnreachable Desync StoreFailed StoreConflict TrainerFailed InternalError"
    ),
    "state.refusals": "Refusal",
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
