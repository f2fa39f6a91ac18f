"""`ftcluster bench scaling [RECIPE]`: measures training speed on 1, 2, 4, ... hosts."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_output, at_least, not_empty
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.help import example_lines
from ftcluster.cli.launch_arguments import add_hosts, add_sharing, launch_options
from ftcluster.cli.output import print_result
from ftcluster.cli.recipe import add_code, add_data, recipe_of
from ftcluster.operations.benchmark.bench_scaling import STEPS, ScalingRequest, bench_scaling
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.plan.recipes import known_recipes
from ftcluster.progress.view import make_view


def add_parser(kinds: Any) -> None:
    """Add the command to the parser of `bench`."""
    parser = kinds.add_parser(
        "scaling",
        help="measure training speed on 1, 2, 4, ... hosts",
        description="Trains for some steps on 1, 2, 4, ... hosts, or with 1, 2, 4, ... ranks on a "
        "single host. Each rank always processes the same number of samples. Compares the samples "
        "per second, and fits a model that predicts the speed on up to 256 hosts.",
        usage="ftcluster bench scaling [RECIPE] [key=value ...] [options]",
    )
    parser.add_argument(
        "words", nargs="*", metavar="RECIPE or key=value", help="as in train (default: quickstart)"
    )
    add_data(parser, "as in train")
    parser.add_argument("--model", type=not_empty, metavar="DIR", help="as in train")
    add_code(parser)
    add_hosts(parser)
    parser.add_argument("--nodes", type=at_least(1), metavar="N", help="use up to N hosts")
    parser.add_argument(
        "--ranks-per-host", type=at_least(1), metavar="N", help="use up to N ranks on a single host"
    )
    parser.add_argument(
        "--steps",
        type=at_least(3),
        default=STEPS,
        metavar="N",
        help="number of steps of each training run; the first third is the warm-up (default: "
        f"{STEPS}); with local steps, a run always includes at least three exchanges of weights",
    )
    parser.add_argument(
        "--modes",
        default="",
        metavar="NAMES",
        help="how ranks exchange gradients or weights, such as "
        "impi-bf16-whole,gloo-fp32-sharded, or all (default: the plan's choice)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write a chart")
    add_sharing(parser)
    add_cluster(parser)
    add_output(parser, verbose="print plain lines instead of the live view")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run, parser=parser, takes_recipe=True)
    parser.more = example_lines("bench scaling", known_recipes())


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    settings = {name: getattr(options, name) for name in ("steps", "modes", "svg")}
    request = ScalingRequest(**recipe_of(options), **settings, launch=launch_options(options))
    with connected(options) as connection:
        request = replace(request, connection=connection)
        print_result(options, bench_scaling(request, make_view(options.verbose)))
    return 0
