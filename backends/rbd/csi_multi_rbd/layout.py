"""What an image is to be like: what its StorageClass asks for, held against the instance that is to make it."""

from __future__ import annotations

from csi_multi.contract import InvalidArgument

from .config import Config, Parameters, SnapshotParameters
from .features import objection
from .rows import Layout


def layout(config: Config, parameters: Parameters) -> Layout:
    """Return the layout of a new image. Raises InvalidArgument for what is not this instance's."""
    refuse_elsewhere(config, parameters)
    features = parameters.features or config.image_features
    if reason := objection(features, parameters.mounter or config.mounter):
        raise InvalidArgument(f"'{'imageFeatures' if parameters.features else 'mounter'}': {reason}")
    data_pool = parameters.data_pool or config.data_pool
    return Layout(
        features=features,
        data_pool="" if data_pool == config.pool else data_pool,  # as Ceph shows it
        object_size=parameters.object_size or 0,
        stripe_unit=parameters.stripe_unit or 0,
        stripe_count=parameters.stripe_count or 0,
    )


def refuse_elsewhere(config: Config, parameters: Parameters | SnapshotParameters) -> None:
    """Raise InvalidArgument when a class means another pool or cluster than the instance's."""
    if parameters.pool and parameters.pool != config.pool:
        raise InvalidArgument(
            f"'pool' {parameters.pool!r} is not this instance's, which is {config.pool!r}: an instance is one pool; "
            "leave it out, or configure another instance and name that one as 'backend'"
        )
    for key, cluster in parameters.cluster.items():
        if cluster != config.fsid:
            raise InvalidArgument(
                f"{key!r} {cluster!r} is not the fsid of this instance's cluster, {config.fsid}; leave it out: "
                "'backend' names the instance, and with it the cluster"
            )
