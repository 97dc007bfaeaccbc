"""Where arrays live: the mesh, and the table that lays logical axes on it."""

from collections.abc import Sequence
from functools import cache

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.array_types import Batch
from transformer_jax.config import MeshConfig
from transformer_jax.data.loader import Shard
from transformer_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

LOGICAL_AXIS_RULES = (
    ("batch", ("data", "fsdp")),
    ("vocab", "tensor"),
    ("model", "fsdp"),
    ("heads", "tensor"),
    ("head_dim", None),
    ("ff", "tensor"),
    ("layers", None),
)
"""Logical axis of an array → the mesh axes that it is split over, where these are still free."""

SIZES = {
    "vocab": "the vocabulary, a multiple of model.vocab_multiple,",
    "model": "model.d_model",
    "heads": "model.num_heads",
    "ff": "model.d_ff",
}
"""What sets the size of a logical axis that may be split."""


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
    # jax.make_mesh lets axes of the mesh share one of the torus only on some kinds of TPU.
    laid_out = mesh_utils.create_device_mesh(
        sizes, devices or jax.devices(), allow_split_physical_axes=True
    )
    return Mesh(laid_out, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are split, their tokens are not."""
    return nn.logical_to_mesh_sharding(PartitionSpec("batch"), mesh, LOGICAL_AXIS_RULES)


def num_batch_shards(mesh: Mesh) -> int:
    """The number of parts that the rows of a batch are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def state_shardings(boxed_state, mesh: Mesh):
    """The sharding of every array of a state whose leaves carry linen's logical axes.

    Raises UserError where a size does not divide evenly over the mesh.
    """
    specs = nn.get_partition_spec(boxed_state)
    shardings = nn.logical_to_mesh_sharding(specs, mesh, LOGICAL_AXIS_RULES)
    jax.tree.map(_check_divides, unbox(boxed_state), specs, shardings)
    return shardings


def _check_divides(array: jax.ShapeDtypeStruct, names: PartitionSpec, where: NamedSharding) -> None:
    for size, name, axes in zip(array.shape, names, where.spec, strict=False):
        for axis in (axes,) if isinstance(axes, str) else axes or ():
            parts = where.mesh.shape[axis]
            if size % parts:
                fitting = [str(n) for n in range(1, size + 1) if size % n == 0 and n <= 2 * parts]
                raise UserError(
                    f"{SIZES[name]} {size} cannot be split over mesh.{axis} {parts}: give a "
                    f"multiple of {parts}, or a mesh.{axis} of {', '.join(fitting)}"
                )


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """`x` with its dims laid out by the table, so that the compiler need not guess.

    Does nothing where no mesh is set: outside a run, one device has it all.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, nn.logical_to_mesh_axes(axes, LOGICAL_AXIS_RULES))


def gathered(weight: jax.Array, *axes: str | None) -> jax.Array:
    """A weight as a device computes with it: whole along the model dim, which only stores it split.

    Said outright, as the compiler else splits the products instead, in many small ones.
    """
    return constrain(weight, *(None if axis == "model" else axis for axis in axes))


def unbox(boxed):
    """Drops the logical axes from a tree, which are needed only to make its shardings."""
    return nn.meta.unbox(boxed)


@cache
def process_shard(mesh: Mesh) -> Shard:
    """The part of the rows that the devices of this process hold, in `count` equal parts.

    Where the mesh deals out rows so that they are no such part, that is all rows.
    """
    num_shards = num_batch_shards(mesh)
    slices = batch_sharding(mesh).addressable_devices_indices_map((num_shards,)).values()
    mine = sorted({rows.indices(num_shards)[0] for (rows,) in slices})
    first, size = mine[0], len(mine)
    if mine != list(range(first, first + size)) or num_shards % size or first % size:
        return Shard(0, 1)
    return Shard(first // size, num_shards // size)


def to_global(batch: Batch, mesh: Mesh) -> Batch:
    """Rows of `process_shard` → the job's sharded batch."""
    shard = process_shard(mesh)
    return {  # type: ignore[return-value]
        name: _place(rows, len(rows) * shard.index, len(rows) * shard.count, mesh)
        for name, rows in batch.items()
    }


def spread(array: np.ndarray, mesh: Mesh) -> jax.Array:
    """An array that every process has whole → the job's, its rows split like those of a batch."""
    return _place(array, 0, len(array), mesh)


def _place(rows: np.ndarray, first: int, num_rows: int, mesh: Mesh) -> jax.Array:
    """The job's array of `num_rows`, of which this process has those from `first` on."""
    shape = (num_rows, *rows.shape[1:])

    def part(index: tuple[slice, ...]) -> np.ndarray:
        start, stop, _ = index[0].indices(num_rows)
        return rows[start - first : stop - first]

    return jax.make_array_from_callback(shape, batch_sharding(mesh), part)


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device, so that every process can read it."""
    return NamedSharding(mesh, PartitionSpec())
