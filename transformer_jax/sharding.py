"""Where arrays live: the mesh, and the table that lays logical axes on it."""

from collections.abc import Sequence

import flax.linen as nn
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.array_types import Batch
from transformer_jax.config import MeshConfig
from transformer_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

LOGICAL_AXIS_RULES = (
    ("batch", ("data", "fsdp")),
    ("vocab", "tensor"),
    ("model", "fsdp"),
    ("heads", "tensor"),
    ("head_dim", None),
    ("ff", "tensor"),
)
"""Logical axis of a parameter or of a batch → the mesh axes that it is split over."""


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The devices given, by default all of the job, as a `data` x `fsdp` x `tensor` mesh.

    Raises UserError where the sizes do not multiply to the number of devices.
    """
    num_devices = jax.device_count() if devices is None else len(devices)
    sizes = [config.data, config.fsdp, config.tensor]
    if -1 in sizes:
        given = -sizes[0] * sizes[1] * sizes[2]
        sizes[sizes.index(-1)] = num_devices // given
    if sizes[0] * sizes[1] * sizes[2] != num_devices:
        raise UserError(
            f"mesh.data {config.data} x mesh.fsdp {config.fsdp} x mesh.tensor {config.tensor} "
            f"does not make {num_devices} devices: change one, or give -1 to one of them"
        )
    axis_types = (AxisType.Auto,) * 3
    return jax.make_mesh(tuple(sizes), MESH_AXES, axis_types=axis_types, devices=devices)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are split, their tokens are not."""
    return nn.logical_to_mesh_sharding(PartitionSpec("batch"), mesh, LOGICAL_AXIS_RULES)


def num_batch_shards(mesh: Mesh) -> int:
    """The number of parts that the rows of a batch are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def state_shardings(boxed_state, mesh: Mesh):
    """The sharding of every array of a state whose leaves carry linen's logical axes."""
    specs = nn.get_partition_spec(boxed_state)
    return nn.logical_to_mesh_sharding(specs, mesh, LOGICAL_AXIS_RULES)


def unbox(boxed):
    """Drops the logical axes from a tree, which are needed only to make its shardings."""
    return nn.meta.unbox(boxed)


def to_global(batch: Batch, sharding: NamedSharding) -> Batch:
    """Rows of this process → the job's sharded batch."""
    return {  # type: ignore[return-value]
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
