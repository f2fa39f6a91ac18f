"""Write the measured figures and tables of the pages from the files of their measurements.

    .venv-dev/bin/python -m bench.figures            # writes pages and pictures
    .venv-dev/bin/python -m bench.figures --check    # only compares; exit code 1 if a page differs

from the repository's root. A page has a figure between two comments, which no reader sees:

    <!--figure:mrpc_vs_tuned-->2.0<!--/figure-->

and a table between `<!-- table: NAME -->` and `<!-- end -->`. `--list` prints the names of all
figures with their values and files. A figure that looks measured and has no comments is an error,
unless figures_allowed.yml has it with the reason.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import first_setup, inference, scale_page, speed_page
from bench.machines import machine_of, short_name
from bench.real_scaling import efficiency, pairs
from bench.runs import ROOT
from ftcluster.planning.memory import ModelSize, need
from tests.faults import table as fault_tables
from tests.faults.campaign import survived

RESULTS = ROOT / "bench/results"
FAULTS = ROOT / "tests/faults/results.jsonl"
RENEW = ".venv-dev/bin/python -m bench.figures"
ALLOWED = Path(__file__).with_name("figures_allowed.yml")
MIB = 2**20
# the older file has the only measurement of hosts with a share of a core
SETUPS = ("2026-11-21-first-setup.json", "2026-11-29-first-setup.json")
SPEED_UPS = {"vs_tuned": "tuned", "vs_default": "stock"}
# suffixes of names of trainings that were measured with other instructions than AMX in bf16
SUFFIXES = {"": "", "-fp32": "_fp32", "-avx512-bf16": "_avx512", "-avx2": "_avx2"}
SCRIPT_WAYS = {"vs_tuned": ("fast", "allocator"), "vs_default": ("fast", "alone"),
               "padded_to_longest_vs_tuned": ("tuned, fast", "tuned")}  # fmt: skip

FIGURE = re.compile(r"(<!--figure:([\w-]+)-->)(.*?)(<!--/figure-->)", re.DOTALL)
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# ratios are always measurements; percentages and times are settings on most pages
RATIO = r"\b\d+\.\d+ times\b|\b\d+(?:\.\d+)? times as (?:fast|long|many|much)\b"
OTHERS = r"\b\d+(?:\.\d+)?(?: to \d+(?:\.\d+)?)? ?(?:%|(?:us|ms|s|min|minutes|hours|h)\b)"
STRICT = {
    "README.md",
    *(f"docs/{name}.md" for name in (
        "index", "engine", "speed", "plan", "reliability", "bench", "amx", "slow",
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A measured figure.

    Attributes:
        text: the value as pages show it.
        source: path of the measurement's file, relative to the repository.
    """

    text: str
    source: str


def read(name: str) -> Any:
    """Return a measurement of bench/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def figures() -> dict[str, Figure]:
    """Return all figures by their names."""
    return {
        **dict(_trainer()), **dict(_scripts()), **dict(_sft()), **dict(_embeddings()),
        **dict(_first_step()), **dict(_setup()), **dict(_collectives()), **dict(_memory()),
        **dict(_faults()), **dict(_scale()), **dict(_networks()), **dict(_shorter_schedules()),
        **dict(_published()), **dict(_quality()), **dict(_peak()),
    }  # fmt: skip


Named = Iterator[tuple[str, Figure]]


def _trainer() -> Named:
    """Return speed-ups over transformers' Trainer, and their ranges by instruction set."""
    for section, suffix in SUFFIXES.items():
        files = speed_page.FILES[f"engine{section}"]
        over_tuned = {}
        # later files have the cases that were measured again
        sources = {case: file for file in files for case in read(file)["speed"]}
        for case, found in speed_page.speeds(f"engine{section}").items():
            name = f"{case.replace('-', '_')}{suffix}"
            source = f"bench/results/{sources[case]}"
            ours = found["ours"]["samples_per_second"]
            for ending, way in SPEED_UPS.items():
                if way in found:
                    ratio = ours / found[way]["samples_per_second"]
                    yield f"{name}_{ending}", Figure(f"{ratio:.1f}", source)
                    if way == "tuned":
                        over_tuned[case] = ratio
            yield f"{name}_of_peak", Figure(f"{found['ours']['share_of_limit']:.0%}", source)
        sources_text = ", ".join(f"bench/results/{file}" for file in files)
        for ending, value in (("least", min(over_tuned.values())),
                              ("most", max(over_tuned.values()))):  # fmt: skip
            yield f"trainer{suffix}_vs_tuned_{ending}", Figure(f"{value:.1f}", sources_text)


def _scripts() -> Named:
    """Return speed-ups of example scripts by `ftcluster run --fast`."""
    for file in speed_page.FILES["fast"]:
        for script, found in read(file)["speed"].items():
            rates = {way: of["samples_per_second"] for way, of in found["variants"].items()}
            for ending, (ours, theirs) in SCRIPT_WAYS.items():
                if {ours, theirs} <= rates.keys():
                    text = f"{rates[ours] / rates[theirs]:.1f}"
                    yield f"run_{script}_{ending}", Figure(text, f"bench/results/{file}")


def _sft() -> Named:
    """Return speed-ups over TRL's SFTTrainer."""
    for section, suffix in SUFFIXES.items():
        for file in speed_page.FILES.get(f"sft{section}", ()):
            measured = read(file)
            for found in measured if isinstance(measured, list) else [measured]:
                name = f"sft{'_lora' if found['lora_r'] else ''}{suffix}"
                ours = found["speed"]["ours"]["tokens_per_second"]
                for ending, way in (("vs_tuned", "trl, tuned"), ("vs_default", "trl")):
                    if way in found["speed"]:
                        ratio = ours / found["speed"][way]["tokens_per_second"]
                        yield f"{name}_{ending}", Figure(f"{ratio:.1f}", f"bench/results/{file}")


def _embeddings() -> Named:
    """Return speed-ups over sentence-transformers' trainers."""
    for section, suffix in SUFFIXES.items():
        for file in speed_page.FILES.get(f"embed{section}", ()):
            found = read(file)
            name = f"{found.get('task', 'embed')}{suffix}"
            ours = found["speed"]["ours"]["pairs_per_second"]
            for ending, way in SPEED_UPS.items():
                ratio = ours / found["speed"][way]["pairs_per_second"]
                yield f"{name}_{ending}", Figure(f"{ratio:.1f}", f"bench/results/{file}")


def _first_step() -> Named:
    """Return the seconds from Enter to the first step."""
    file = "2026-11-29-first-step.json"
    seconds = read(file)["seconds"]
    for name, way in (("python", "plain Python"), ("first", "mrpc, first"),
                      ("again", "mrpc, again")):  # fmt: skip
        text = f"{seconds[way]['first step']:.1f}"
        yield f"first_step_{name}", Figure(text, f"bench/results/{file}")


def _setup() -> Named:
    """Return the seconds of a first and a second setup, with the wheels downloaded before."""
    for file in SETUPS:
        for (percent, hosts), seconds in first_setup.medians(read(file)["runs"]).items():
            share = f"{percent}_percent" if percent else "shared"
            for turn, value in seconds.items():
                name = f"setup_{hosts}_hosts_{share}_{turn}"
                yield name, Figure(f"{value:.0f}", f"bench/results/{file}")


def _collectives() -> Named:
    """Return the times of an all-reduce over impi, relative to gloo."""
    file = "2026-11-26-allreduce.json"
    for row in read(file)["rows"]:
        if row["bytes"] >= MIB:
            text = f"{row['ms']['impi'] / row['ms']['gloo']:.1f}"
            name = f"allreduce_{row['bytes'] // MIB}_mib_of_gloo"
            yield name, Figure(text, f"bench/results/{file}")
    file = "2026-11-26-between-hosts.json"
    for row in read(file)["rows"]:
        if (row["hosts"], row["bytes"]) == (2, 25 * MIB):
            text = f"{row['ms']['impi'][1] / row['ms']['gloo'][1]:.2f}"
            yield f"allreduce_2_hosts_{row['rate']}_of_gloo", Figure(text, f"bench/results/{file}")


def _memory() -> Named:
    """Return the largest error of the plan's memory estimate, which is computed here."""
    file = "2026-11-22-memory-peaks.json"
    errors = []
    for row in read(file)["rows"]:
        size = ModelSize(
            row["parameters"], row["layers"], row["features"], row["heads"], row["vocabulary"]
        )
        estimate = need(size, row["precision"], row["samples"], row["tokens"],
                        row["vocabulary"] > 0, row["ipex"]).total / 1e6  # fmt: skip
        errors.append(abs(estimate / row["peak_mb"] - 1))
    yield "memory_largest_error", Figure(f"{max(errors):.0%}", f"bench/results/{file}")
    yield "memory_peaks", Figure(str(len(errors)), f"bench/results/{file}")


def _faults() -> Named:
    """Return results of the fault injection."""
    results = fault_tables.read(FAULTS)
    faults = [one for one in results if one["kind"] == "fault"]
    runs = [one for one in results if one["kind"] == "run"]
    noticed = sorted(one["noticed"] for one in faults if one["noticed"] is not None)
    values = {
        "tried": len(faults),
        "survived": sum(map(survived, faults)),
        "cause_named": sum(one["named"] for one in faults),
        "trainings": len(runs),
        "weights_compared": sum(one["weights_compared"] for one in runs),
        "weights_differing": sum(len(one["weights_differing"]) for one in runs),
        "samples_lost": sum(one["samples_lost"] for one in runs),
        "samples_twice": sum(one["samples_extra"] for one in runs),
        "checkpoints_lost": sum(one["checkpoint_lost"] for one in faults),
        "left_behind": sum(len(one["left"]) for one in (*runs, *faults)),
        "loss_difference": f"{max(one['loss_differs'] for one in runs):.2%}",
        "noticed_median": f"{noticed[len(noticed) // 2]:.0f}",
    }
    for name, value in values.items():
        yield f"faults_{name}", Figure(str(value), "tests/faults/results.jsonl")


def _scale() -> Named:
    """Return the costs of a run by its number of ranks."""
    source = str(scale_page.RESULTS.relative_to(ROOT))
    found = scale_page.read()
    ranks, lines = found["ranks"][-1], found["lines"][-1]
    yield "scale_ranks", Figure(f"{ranks['ranks']}", source)
    yield "scale_supervisor", Figure(f"{ranks['supervisor_cpu']:.1%}", source)
    yield "scale_guardian", Figure(f"{ranks['guardian_cpu']:.2%}", source)
    yield "scale_hang_named", Figure(f"{ranks['hung']['seconds']:.0f}", source)
    yield "scale_connections", Figure(f"{lines['ranks']:,}", source)
    yield "scale_connections_supervisor", Figure(f"{lines['supervisor_cpu']:.0%}", source)
    runs = found["runs"][-1]
    yield "scale_ps_runs", Figure(f"{runs['runs']:,}", source)
    yield "scale_ps_seconds", Figure(f"{runs['seconds']:.1f}", source)


def _networks() -> Named:
    """Return the efficiency on several hosts, and the traffic of local steps."""
    file = "2026-11-23-local-sync.json"
    for case, ways in read(file)["trainings"].items():
        fp32, local = (
            next(of for name, of in ways.items() if name.startswith(start))
            for start in ("each step, fp32", "local,")
        )
        text = f"{fp32['sent_bytes'] / local['sent_bytes']:.0f}"
        yield f"local_steps_{case}_traffic", Figure(text, f"bench/results/{file}")
    file = "2026-11-27-real-scaling.json"
    turns = read(file)["turns"]
    for hosts in sorted({turn["hosts"] for turn in turns}):
        steps = [pair for turn in turns if turn["hosts"] == hosts for pair in pairs(turn["steps"])]
        yield f"scaling_{hosts}_hosts", Figure(f"{efficiency(steps):.0%}", f"bench/results/{file}")


def _shorter_schedules() -> Named:
    """Return speed-ups of shorter schedules with the same final quality as the stock recipe."""
    for file in speed_page.FILES["time"]:
        for case, ways in read(file)["trainings"].items():
            over = ways["short"]["seconds"]["stock_over_this"]
            text = f"{sum(over) / len(over):.1f}"
            yield f"shorter_schedule_{case}", Figure(text, f"bench/results/{file}")


def _quality() -> Named:
    """Return the difference of SQuAD's F1 to the tuned Trainer in bf16."""
    [file] = speed_page.FILES["quality"]
    wanted = ("squad", "bf16", "f1")
    [row] = (row for row in read(file)["quality"]
             if (row["case"], row["precision"], row["metric"]) == wanted)  # fmt: skip
    scale = 1 if row["difference"] > 1 else 100
    yield "squad_f1_difference", Figure(f"{scale * row['difference']:.0f}", f"bench/results/{file}")


def _peak() -> Named:
    """Return the multiply-add peak of a core by instruction set, in TFLOP/s."""
    file = "2026-11-27-peak.json"
    for instructions, rate in read(file)["peaks"].items():
        yield f"peak_{instructions}", Figure(f"{rate / 1e12:.2g}", f"bench/results/{file}")


def _published() -> Named:
    """Return the largest factor between predicted and published times of Trainer."""
    results = speed_page.by_precision()
    off = [
        factor
        for precision in ("fp32", "bf16")
        for factor in speed_page.published_errors(results, precision)
    ]
    source = ", ".join(f"bench/results/{file}" for file in speed_page.FILES["engine"])
    least, most = min(off) - 1, max(off) - 1
    yield "published_error_least", Figure(f"{least:+.0%}", source)
    yield "published_error_most", Figure(f"{most:+.0%}", source)


def tables() -> dict[str, str]:
    """Return all tables by their names."""
    return {
        **speed_page.tables(list(speed_page.comparisons())),
        **fault_tables.tables(fault_tables.read(FAULTS)),
        "scale": scale_page.tables(scale_page.read()),
        "inference": inference.table(read("2026-11-29-inference.json")["speed"]),
        "first-setup": "\n\n".join(
            _of(file, first_setup.table(read(file)["runs"])) for file in SETUPS
        ),
    }


def _of(file: str, rows: Sequence[str]) -> str:
    """Return a table below the machine of its file."""
    machine = machine_of(read(file))
    name = short_name(machine) if "cpu" in machine else "a CPU that was not recorded"
    flags = " ".join(machine.get("instructions", []))
    heads = ", ".join(filter(None, (f"{machine['cores']} cores of {name}", flags, machine["date"])))
    return "\n".join((f"{heads[0].upper()}{heads[1:]} (results/{file}):", "", *rows))


def pages() -> list[Path]:
    """Return the pages that may have figures."""
    found = [ROOT / "README.md", ROOT / "bench/README.md"]
    return [*found, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("bench/notes/*.md"))]


def written(page: str, values: Mapping[str, Figure], made: Mapping[str, str]) -> str:
    """Return a page with its figures and tables renewed.

    A table that another program writes stays as it is.

    Raises:
        KeyError: no measurement has a figure of this name.
    """
    page = FIGURE.sub(lambda found: f"{found[1]}{values[found[2]].text}{found[4]}", page)
    return TABLE.sub(
        lambda found: f"{found[1]}{made[found[2]]}\n{found[4]}" if found[2] in made else found[0],
        page,
    )


def prose(page: str) -> str:
    """Return a page without figures, generated tables, code and the targets of links."""
    page = re.sub(r"(?ms)^( *)```.*?^\1```", "", page)
    page = re.sub(r"(?m)^ {4}.*$", "", page)
    page = TABLE.sub("", FIGURE.sub("FIGURE", page))
    page = re.sub(r"`[^`\n]*`", "CODE", page)
    return re.sub(r"\]\([^)]*\)", "]", page)


def unmarked(name: str, page: str, allowed: Mapping[str, list[str]]) -> list[str]:
    """Return the figures of a page that look measured and have no comments.

    Args:
        name: the page's path, relative to the repository.
        allowed: texts around figures that are no measurements, by page.
    """
    text = " ".join(prose(page).split())
    for known in allowed.get(name, []):
        text = text.replace(" ".join(known.split()), " ")
    pattern = f"{RATIO}|{OTHERS}" if name in STRICT else RATIO
    return [
        f"{name}: '{text[max(0, found.start() - 40) : found.end() + 20]}'"
        for found in re.finditer(pattern, text)
    ]


def allowed_texts() -> dict[str, list[str]]:
    """Return figures_allowed.yml by page."""
    reasons = yaml.safe_load(ALLOWED.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for by_page in reasons.values():
        for page, texts in by_page.items():
            found.setdefault(page, []).extend(map(str, texts))
    return found


def problems() -> Iterator[str]:
    """Yield the differences between pages and measurements."""
    values, made, allowed = figures(), tables(), allowed_texts()
    for path in pages():
        name, page = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        unknown = sorted({found[2] for found in FIGURE.finditer(page)} - values.keys())
        if unknown:
            yield f"{name}: no measurement has {', '.join(unknown)}"
        elif written(page, values, made) != page:
            yield f"{name}: differs from the measurements; run {RENEW}"
        if not name.startswith("bench/"):
            for found in unmarked(name, page, allowed):
                yield f"{found}: generate it (bench/figures.py), or list it in {ALLOWED.name}"
        text = " ".join(prose(page).split())
        for known in allowed.get(name, []) if name in STRICT else []:
            if " ".join(known.split()) not in text:
                yield f"{ALLOWED.name}: {name} no longer has '{known}'"


def main() -> int:
    """Run the program and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the pages with the figures, and change nothing",
    )
    parser.add_argument("--list", action="store_true", help="print all figures")
    options = parser.parse_args()
    if options.list:
        for name, figure in figures().items():
            print(f"{name}\t{figure.text}\t{figure.source}")
        return 0
    if not options.check:
        values, made = figures(), tables()
        for path in pages():
            page = path.read_text(encoding="utf-8")
            if (new := written(page, values, made)) != page:
                path.write_text(new, encoding="utf-8")
        speed_page.draw()
        scale_page.draw()
    wrong = list(problems())
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
