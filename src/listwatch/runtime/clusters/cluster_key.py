"""Keys of objects in several clusters."""

from typing import Final, Self

from listwatch.selector import subdomain_problems

_SEPARATOR: Final = ":"


class ClusterKey(str):
    """The key of an object in one of several clusters, as text: "cluster:namespace/name".

    It is a string, so logs, metrics and `listwatch why` name the cluster.
    """

    __slots__ = ()

    @classmethod
    def of(cls, cluster: str, key: str) -> Self:
        """Return the key of an object of a cluster."""
        return cls(f"{cluster}{_SEPARATOR}{key}")

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.partition(_SEPARATOR)[0]

    @property
    def key(self) -> str:
        """The key within the cluster: "namespace/name" or "name"."""
        return self.partition(_SEPARATOR)[2]


def cluster_of(key: str) -> str:
    """Return the cluster of a key."""
    return key.partition(_SEPARATOR)[0]


def check_cluster_name(name: str) -> None:
    """Raise a ValueError if a name can't name a cluster: it must be a DNS subdomain."""
    if problems := subdomain_problems(name):
        raise ValueError(f"{name!r} can't name a cluster: {problems[0]}")
