"""The parts of help that argparse lacks: groups of commands, examples, and first steps."""

import textwrap
from collections.abc import Iterable, Mapping

# commands by purpose, in the order in which a user needs them
GROUPS: Mapping[str, tuple[str, ...]] = {
    "make a cluster": ("setup", "check", "hosts", "stacks", "bundle", "teardown"),
    "train on it": ("recipes", "data", "plan", "train", "sweep", "run", "examples", "export"),
    "use a model": ("evaluate", "predict", "generate", "export-model"),
    "runs": ("ps", "logs", "attach", "stop", "fetch", "report", "clean"),
    "more": ("demo", "bench", "tune", "version", "completion"),
}
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "setup": (
        "ftcluster setup inventory.ini",
        "ftcluster setup inventory.ini -K -e ftcluster_hosts=xeons",
        "ftcluster setup inventory.ini --check --diff",
    ),
    "check": ("ftcluster check", "ftcluster check inventory.ini --json"),
    "hosts": ("ftcluster hosts", "ftcluster hosts drain xeon3 --why 'memory errors'"),
    "stacks": ("ftcluster stacks", "ftcluster stacks --torch 2.7 --ipex"),
    "bundle": ("ftcluster bundle", "ftcluster bundle --stack native -o native.tar"),
    "teardown": ("ftcluster teardown inventory.ini",),
    "recipes": ("ftcluster recipes", "ftcluster recipes classify", "ftcluster recipes --fields"),
    "data": (
        "ftcluster data classify --data reviews.csv",
        "ftcluster data sft --data chats.jsonl --model my-model",
    ),
    "plan": (
        "ftcluster plan mrpc",
        "ftcluster plan gpt2 --facts cluster.json --nodes 4",
        "ftcluster plan mrpc --commands",
    ),
    "train": (
        "ftcluster train",
        "ftcluster train classify --data reviews.csv",
        "ftcluster train mrpc learning_rate=2e-5 num_train_epochs=2 --nodes 4",
        "ftcluster train my.yml --detach",
        "ftcluster train --resume RUN",
    ),
    "sweep": (
        "ftcluster sweep mrpc learning_rate=1e-5,2e-5,5e-5 batch_size=16,32",
        "ftcluster sweep classify --data reviews.csv learning_rate=1e-5..1e-4 --random 8 --nodes 1",
    ),
    "evaluate": ("ftcluster evaluate classify --model my-model --data reviews.csv",),
    "predict": (
        "ftcluster predict classify --model my-model --data new.csv --output predicted.csv",
    ),
    "generate": ('ftcluster generate RUN "Name a prime number."',),
    "run": (
        "ftcluster run -- train.py --epochs 3",
        "ftcluster run --nodes 2 --ranks-per-host 4 -- -m my_package.train",
    ),
    "examples": ("ftcluster examples", "ftcluster examples nanogpt --to my-scripts"),
    "export": (
        "ftcluster export k8s mrpc --facts nodes.json --image registry/ftcluster-node:1",
        "ftcluster export slurm mrpc --nodes 4 --time 2:00:00 -o mrpc.sh",
    ),
    "export slurm": (
        "ftcluster export slurm classify --data reviews.csv --partition xeons -o classify.sh",
    ),
    "export k8s": (
        "ftcluster export k8s mrpc --kind trainjob --image registry/ftcluster-node:1 -o k8s",
    ),
    "export-model": ("ftcluster export-model openvino RUN --int8",),
    "ps": ("ftcluster ps", "ftcluster ps --json"),
    "logs": ("ftcluster logs RUN", "ftcluster logs RUN --rank 3"),
    "attach": ("ftcluster attach RUN",),
    "stop": ("ftcluster stop RUN", "ftcluster stop RUN RUN"),
    "fetch": ("ftcluster fetch RUN my-model",),
    "clean": ("ftcluster clean --dry-run",),
    "bench": ("ftcluster bench allreduce", "ftcluster bench scaling mrpc"),
    "bench allreduce": ("ftcluster bench allreduce --backends impi,gloo --sizes 1M,100M",),
    "bench scaling": ("ftcluster bench scaling mrpc --steps 50",),
    "tune": ("ftcluster tune mrpc --budget 30m", "ftcluster tune mrpc --forget"),
    "report": ("ftcluster report RUN",),
    "demo": ("ftcluster demo",),
    "version": ("ftcluster version --json",),
    "completion": ('eval "$(ftcluster completion bash)"    # in ~/.bashrc',),
}
BEGIN = """\
On one machine, to try it:

  ftcluster demo

On a cluster:

  ftcluster setup inventory.ini                  # one host per line: node1 ansible_host=10.0.0.11
  ftcluster recipes                              # list recipes
  ftcluster train classify --data reviews.csv    # or your own recipe

Every command: ftcluster --help"""


def grouped(summaries: Mapping[str, str]) -> list[str]:
    """Return lines with the commands in their groups, and a summary of each command."""
    width = max(map(len, summaries))
    lines: list[str] = []
    in_groups = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in summaries if name not in in_groups)
    for title, names in {**GROUPS, "others": rest}.items():
        shown = [name for name in names if name in summaries]
        if shown:
            lines += ["", f"{title}:", *(f"  {n.ljust(width)}  {summaries[n]}" for n in shown)]
    return lines


def example_lines(name: str, recipes: Iterable[str] = ()) -> list[str]:
    """Return lines with examples of a command, followed by the names of its recipes, if any."""
    lines = []
    if names := ", ".join(recipes):
        wrapped = textwrap.wrap(names, 76, initial_indent="  ", subsequent_indent="  ")
        lines += ["", "recipes:", *wrapped]
    if name in EXAMPLES:
        lines += ["", "examples:", *(f"  {example}" for example in EXAMPLES[name])]
    return lines
