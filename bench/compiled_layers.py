"""An encoder's layers by torch.compile, against torch's operators and our kernels.

    .venv-dev/bin/python -m bench.compiled_layers --data DIR --encoder DIR [--precision bf16]
        [--turns N] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix, the code of this checkout,
and a C++ compiler, which torch.compile needs. DIR has the folder squad. A turn is a forward and a
backward pass of an encoder on 32 contexts, in one process of `compiled_layers_run`:

    torch      the model of transformers
    compiled   the same model; each layer is compiled by torch.compile (regional compilation)
    ours       the model as training has it, with our kernels and without padding

All have dropout. Times are medians of the turns, without the compilation.
"""

import sys
from pathlib import Path

from bench.runs import arguments, environment, machine, precision, run_module, write

TURNS = 9


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = arguments(__doc__, (), threads=2)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=precision())
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    work = {
        "squad": str((options.data / "squad/train.jsonl").absolute()),
        "precision": options.precision, "turns": options.turns,
    }  # fmt: skip
    variables = environment(options.threads, tcmalloc=True)
    encoder = options.encoder.absolute()
    found = run_module("bench.compiled_layers_run", options.prefix, encoder, work, variables)
    of_machine = {**machine(options.prefix, options.threads), "precision": options.precision}
    write(options.results, {"machine": of_machine, **found})
    print("| layers | s | times as fast as torch |\n|---|---|---|")
    for way, seconds in found["seconds"].items():
        print(f"| {way} | {seconds:.3f} | {found['seconds']['torch'] / seconds:.2f} |")
    print(f"\nfirst pass with compilation: {found['compilation']:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
