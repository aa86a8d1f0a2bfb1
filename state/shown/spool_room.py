"""The room that a client's spool needs: the same for the client, which checks it, and for a plan and the join guide."""

from epochal.state.config.state_file import StateFile
from epochal.state.model.replica import checkpoint_size_bound
from epochal.state.model.tensors import TensorLayout
from epochal.state.replays.inner_states import moments_bytes
from epochal.state.results import result_size_bound
from epochal.state.updates import UpdateRule, update_size_bound

REPLICAS_OF_A_ROUND = 2
"""A client's spool holds two replicas, each as large as a checkpoint, while it merges an outcome."""
RESIDUALS_OF_A_ROUND = 2
"""A client's spool holds what its codec has left out before and after a result whose outcome is not known."""
EAGER_REPLICAS = 1
"""With `merge.delay` it holds the start from which the client trains ahead, in the form of a replica, one more result
and one more residual."""


def round_bytes(layout: TensorLayout, state: StateFile) -> int:
    """Return the size of what a client's spool holds in a round: two replicas, its own result, and the update.

    A third replica is kept where checkpoints are written while rounds go on. With error feedback, there are two
    residuals. An update that has to be made here takes a sum and one more result, for which the third replica's room,
    or what the disk has beyond this, must do.

    Args:
        layout: of the model's parameters.
        state: the run's.
    """
    merge, delay = state.merge, state.merge.delay
    replica_count = REPLICAS_OF_A_ROUND + bool(state.config.checkpoint_every) + EAGER_REPLICAS * delay
    checkpoint_bytes = checkpoint_size_bound(layout, has_momentum=merge.has_momentum)
    result_bytes = (1 + delay) * result_size_bound(layout, merge.codec_name)
    residual_bytes = (RESIDUALS_OF_A_ROUND + delay) * layout.size_bytes if merge.error_feedback else 0
    update_bytes = update_size_bound(layout, UpdateRule.of(merge))
    return replica_count * checkpoint_bytes + result_bytes + update_bytes + residual_bytes


def spool_bytes(layout: TensorLayout, state: StateFile) -> int:
    """Return the disk that a client needs: for what its spool holds in a round, and the inner states beside that."""
    return round_bytes(layout, state) + inner_states_bytes(layout, state)


def inner_states_bytes(layout: TensorLayout, state: StateFile) -> int:
    """Return the size of the inner states that a client keeps beside its spool, so that it can reveal them."""
    return state.held_inner_states * moments_bytes(layout, state.model.LLM.optimizer)
