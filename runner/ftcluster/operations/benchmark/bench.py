"""Measures how fast a cluster sums gradients, by each backend."""

from dataclasses import dataclass, field, replace
from typing import Any

from ftcluster.benchmark.all_reduce import measure, prepare, read_size
from ftcluster.benchmark.all_reduce_report import document, fp32_times, lines
from ftcluster.cluster.record import MeasuredOn, with_bench
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError
from ftcluster.operations.connection import Connection, cluster_of
from ftcluster.operations.result import Result
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.planning.batch import BUCKET
from ftcluster.progress.view import View
from ftcluster.provision.shared import change_record

SIZES = "4K,64K,1M,4M,25M,100M,256M,512M"
SECONDS = 180


@dataclass(frozen=True)
class AllReduceRequest:
    """What is measured.

    Attributes:
        sizes: bytes of the tensors, with K, M or G for powers of 1024.
        backends: their names; none: all.
        nodes: only the first so many hosts; None: all.
        ranks_per_host: None: as many as a training has.
        seconds: sizes that would take longer are left out.
    """

    connection: Connection = field(default_factory=Connection)
    sizes: tuple[str, ...] = tuple(SIZES.split(","))
    backends: tuple[str, ...] = ()
    nodes: int | None = None
    ranks_per_host: int | None = None
    seconds: int = SECONDS
    launch: LaunchOptions = field(default_factory=LaunchOptions)


def bench_allreduce(request: AllReduceRequest, view: View) -> Result:
    """Measure, and save the result on the head: later plans choose the backend by it.

    Raises:
        ClusterChanged: the cluster is another one than it was planned for; see `again`.
        FtclusterError: the request is not valid, or the run failed.
    """
    sizes = sorted({read_size(text) for text in request.sizes})
    cluster = cluster_of(request.connection, view)
    connection_options = request.connection.to(cluster)
    shape = (request.nodes, request.ranks_per_host)
    bench = prepare(cluster, sizes, list(request.backends), *shape, request.seconds)
    bench = replace(bench, run=request.launch.applied_to(bench.run))
    measured, seconds = measure(bench, view, connection_options)
    result = document(bench, measured, seconds)
    if len(bench.hosts) == len(cluster.facts.hosts):
        _keep(result, cluster, connection_options, view)
    return Result(result, tuple(lines(result)))


def _keep(
    result: dict[str, Any], cluster: Cluster, connection_options: tuple[str, ...], view: View
) -> None:
    """Save the result for the plan's choice of the backend, if it has a large enough size."""
    ms = fp32_times(result, "ms")
    size = min((size for size in ms if size >= BUCKET), default=0)
    if size and len(ms[size]) > 1:
        hosts = tuple(host.name for host in cluster.facts.hosts)
        measured = MeasuredOn(
            ms.pop(size), size, hosts, cluster.facts.head.stack,
            fp32_times(result, "spread")[size], result["load"],
            {str(other): times for other, times in ms.items()},
        )  # fmt: skip
        try:
            change_record(cluster, with_bench(measured), connection_options, view)
        except FtclusterError as error:  # what was measured is worth showing all the same
            view.say(f"not saved for plans: {error}")
