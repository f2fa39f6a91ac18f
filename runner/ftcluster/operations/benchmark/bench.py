"""Measure how fast a cluster averages gradients with each backend."""

from dataclasses import dataclass, field, replace
from typing import Any

from ftcluster.benchmark.all_reduce import measure, prepare, read_size
from ftcluster.benchmark.all_reduce_report import document, fp32_times, lines
from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.record import MeasuredOn, with_bench
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError
from ftcluster.operations.connection import Connection, cluster_of
from ftcluster.operations.result import Result
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.planning.batch import BUCKET
from ftcluster.progress.view import View
from ftcluster.provision.shared import change_record

SIZES = "4K,64K,1M,4M,25M,100M,256M,512M"
SECONDS = 180


@dataclass(frozen=True)
class AllReduceRequest:
    """The tensor sizes, backends and hosts to measure.

    Attributes:
        sizes: sizes of the tensors in bytes, with K, M or G for powers of 1024.
        backends: names of the backends; if empty, all backends are measured.
        hosts: names of the hosts to use; if empty, all hosts of the cluster that are not drained.
        nodes: number of hosts to use, including the head; None for all hosts.
        ranks_per_host: number of ranks on each host; None for as many as training would use.
        seconds: time limit; sizes that would exceed the limit are skipped.
    """

    connection: Connection = field(default_factory=Connection)
    sizes: tuple[str, ...] = tuple(SIZES.split(","))
    backends: tuple[str, ...] = ()
    nodes: int | None = None
    ranks_per_host: int | None = None
    seconds: int = SECONDS
    hosts: tuple[str, ...] = ()
    launch: LaunchOptions = field(default_factory=LaunchOptions)


def bench_allreduce(request: AllReduceRequest, view: View) -> Result:
    """Measure the time of an all-reduce with each backend.

    The result is saved on the head, and later plans use it to choose a backend.

    Raises:
        ClusterChanged: the cluster has changed since the run was planned. `again`
            retries the operation.
        FtclusterError: the request is not valid, or the run failed.
    """
    sizes = sorted({read_size(text) for text in request.sizes})
    cluster = cluster_of(request.connection, view)
    connection_options = request.connection.to(cluster)
    shape = (request.nodes, request.ranks_per_host)
    bench = prepare(
        with_hosts(cluster, request.hosts), sizes, list(request.backends), *shape, request.seconds
    )
    bench = replace(bench, run=request.launch.applied_to(bench.run))
    ensure_head_access(bench.run, connection_options, view)
    measured, seconds = measure(bench, view, connection_options)
    result = document(bench, measured, seconds)
    if len(bench.hosts) == len(cluster.facts.hosts):
        _keep(result, cluster, connection_options, view)
    return Result(result, tuple(lines(result)))


def _keep(
    result: dict[str, Any], cluster: Cluster, connection_options: tuple[str, ...], view: View
) -> None:
    """Save the result on the head, so that later plans can choose the fastest backend.

    A result without a tensor size of at least BUCKET bytes is not saved.
    """
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
        except FtclusterError as error:  # the measurement is worth showing even so
            view.say(f"the result was not saved for later plans: {error}")
