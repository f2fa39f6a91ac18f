"""`ftcluster bench`: measures a cluster."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ftcluster.ansible.options import CONNECTION, add_options, ask_passwords
from ftcluster.benchmark.all_reduce import measure, prepare, read_size
from ftcluster.benchmark.all_reduce_report import document, fp32_times, lines
from ftcluster.cli import bench_scaling
from ftcluster.cli.arguments import add_output, add_sharing, at_least, print_result
from ftcluster.cli.help import example_lines
from ftcluster.cli.run_options import add_cluster, cluster_of, reach_of
from ftcluster.cli.usage import add_kinds
from ftcluster.cluster.record import MeasuredOn, with_bench
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.progress.view import View, make_view
from ftcluster.provision.shared import change_record

SIZES = "4K,64K,1M,4M,25M,100M,256M,512M"
SECONDS = 180


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench", help="measure the cluster", description="Measures the cluster."
    )
    kinds = add_kinds(parser, "measure")
    all_reduce = kinds.add_parser(
        "allreduce",
        help="how fast gradients are summed, by each backend",
        description="Measures all-reduces in fp32 and bf16 by each backend of the stack and by MPI "
        "itself, with ranks as a training has them, on the cluster that was set up last. Later "
        "plans choose the backend by the result.",
        usage="ftcluster bench allreduce [options]",
    )
    all_reduce.add_argument(
        "--sizes",
        default=SIZES,
        metavar="SIZES",
        help=f"of the tensors, with K, M or G for powers of 1024 (default: {SIZES})",
    )
    all_reduce.add_argument(
        "--backends", default="", metavar="NAMES", help="such as impi,gloo (default: all)"
    )
    all_reduce.add_argument("--nodes", type=at_least(1), metavar="N", help="only the first N hosts")
    all_reduce.add_argument(
        "--ranks-per-host",
        type=at_least(1),
        metavar="N",
        help="ranks on each host (default: as many as a training has)",
    )
    all_reduce.add_argument(
        "--seconds",
        type=at_least(1),
        default=SECONDS,
        metavar="N",
        help=f"leave out sizes that would take longer (default: {SECONDS})",
    )
    add_sharing(all_reduce)
    add_cluster(all_reduce)
    add_output(all_reduce, verbose="print plain lines instead of the live view")
    add_options(all_reduce, ("--extra-vars", *CONNECTION))
    all_reduce.set_defaults(run=run, parser=all_reduce)
    all_reduce.more = example_lines("bench allreduce")
    bench_scaling.add_parser(kinds)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.words:
        raise UsageError(f"bench allreduce takes no argument, not {' '.join(options.words)}")
    sizes = sorted({read_size(text) for text in options.sizes.split(",")})
    backends = options.backends.split(",") if options.backends else []
    with ask_passwords(vars(options)) as passwords:
        cluster = cluster_of(options, passwords)
        reach = (*cluster.options, *reach_of(options, passwords))
        shape = (options.nodes, options.ranks_per_host)
        bench = prepare(cluster, sizes, backends, *shape, options.seconds)
        sharing = {"wait": options.wait, "share_hosts": options.share_hosts}
        launch = replace(bench.run.launch, **sharing)
        bench = replace(bench, run=replace(bench.run, launch=launch))
        view = make_view(options.verbose)
        measured, seconds = measure(bench, view, reach)
        result = document(bench, measured, seconds)
        print_result(options, result, "\n".join(lines(result)))
        if len(bench.hosts) == len(cluster.facts.hosts):
            keep(result, cluster, reach, view)
    return 0


def keep(result: dict[str, Any], cluster: Cluster, reach: Sequence[str], view: View) -> None:
    """Save the result for the plan's choice of the backend, if it has a large enough size."""
    size, ms = fp32_times(result)
    if len(ms) > 1:
        hosts = tuple(host.name for host in cluster.facts.hosts)
        measured = MeasuredOn(ms, size, hosts, cluster.facts.head.stack)
        try:
            change_record(cluster, with_bench(measured), reach, view)
        except FtclusterError as error:  # what was measured is printed already
            view.say(f"not saved for plans: {error}")
