"""`ftcluster bench`: measures a cluster."""

import argparse
from typing import Any

from ftcluster.cli import bench_scaling
from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_output, at_least
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.help import example_lines
from ftcluster.cli.launch_arguments import add_hosts, add_sharing, launch_options
from ftcluster.cli.output import print_result
from ftcluster.cli.parser import add_kinds
from ftcluster.errors import UsageError
from ftcluster.operations.benchmark.bench import SECONDS, SIZES, AllReduceRequest, bench_allreduce
from ftcluster.operations.connection import CONNECTION
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench", help="measure the cluster", description="Measures the cluster."
    )
    kinds = add_kinds(parser, "measure")
    all_reduce = kinds.add_parser(
        "allreduce",
        help="measure the speed of gradient all-reduces by backend",
        description="Measures fp32 and bf16 all-reduces with each backend of the stack, and with "
        "MPI itself, on the cluster that was set up last. The ranks are placed as for training. "
        "Later plans use the result to choose the backend.",
        usage="ftcluster bench allreduce [options]",
    )
    all_reduce.add_argument(
        "--sizes",
        default=SIZES,
        metavar="SIZES",
        help=f"tensor sizes in bytes, with K, M or G for powers of 1024 (default: {SIZES})",
    )
    all_reduce.add_argument(
        "--backends", default="", metavar="NAMES", help="backends, such as impi,gloo (default: all)"
    )
    add_hosts(all_reduce)
    all_reduce.add_argument("--nodes", type=at_least(1), metavar="N", help="only the first N hosts")
    all_reduce.add_argument(
        "--ranks-per-host",
        type=at_least(1),
        metavar="N",
        help="number of ranks on each host (default: as for training)",
    )
    all_reduce.add_argument(
        "--seconds",
        type=at_least(1),
        default=SECONDS,
        metavar="N",
        help=f"time limit in seconds, beyond which sizes are skipped (default: {SECONDS})",
    )
    add_sharing(all_reduce)
    add_cluster(all_reduce)
    add_output(all_reduce, verbose="print plain lines instead of the live view")
    add_options(all_reduce, ("--extra-vars", *CONNECTION))
    all_reduce.set_defaults(run=run, parser=all_reduce)
    all_reduce.more = example_lines("bench allreduce")
    bench_scaling.add_parser(kinds)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if options.words:
        raise UsageError(f"bench allreduce takes no arguments, got {' '.join(options.words)}")
    backends = tuple(options.backends.split(",")) if options.backends else ()
    with connected(options) as connection:
        request = AllReduceRequest(
            connection, tuple(options.sizes.split(",")), backends, options.nodes,
            options.ranks_per_host, options.seconds, options.hosts, launch_options(options),
        )  # fmt: skip
        print_result(options, bench_allreduce(request, make_view(options.verbose)))
    return 0
