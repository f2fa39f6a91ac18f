"""Makes the tables of speed and docs/speed.svg from the measurements in bench/results.

FILES names the measurements of each section; `bench.figures` writes the pages.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

from bench.curves import mean_and_spread
from bench.local_sync import METRICS
from bench.machines import machine_of, same_machine, short_name
from bench.profile import table as of_profiles
from bench.published import errors
from bench.published import table as of_published
from bench.quality import table as of_quality
from bench.runs import ROOT
from ftcluster.report.charts import THEME

RESULTS = ROOT / "bench/results"
FILES = {
    # if there are several files, the later ones have the cases that were measured again
    "engine": (
        "2026-11-27-engine.json",
        "2026-11-27-engine-tasks.json",
        "2026-11-27-engine-tiles.json",
    ),
    "engine-fp32": ("2026-11-27-engine-fp32.json",),
    # measurements on CPUs without AMX
    "engine-avx512-bf16": ("2026-11-28-engine.json",),
    "sft-avx512-bf16": ("2026-11-28-sft.json", "2026-11-28-sft-lora.json"),
    "embed-avx512-bf16": ("2026-11-28-embed.json", "2026-11-28-rerank.json"),
    "engine-avx2": ("2026-11-28-engine-avx2.json", "2026-11-28-engine-avx2-lm.json"),
    "sft-avx2": (),
    "embed-avx2": ("2026-11-28-embed-avx2.json", "2026-11-28-rerank-avx2.json"),
    # a Xeon without AMX: AVX512-BF16 has half of fp32's rate there, so planned runs use fp32
    "engine-xeon-bf16": ("2026-11-29-engine-bf16.json",),
    "sft-xeon-bf16": ("2026-11-29-sft.json", "2026-11-29-sft-lora.json"),
    "embed-xeon-bf16": ("2026-11-29-embed-bf16.json", "2026-11-29-rerank-bf16.json"),
    "engine-xeon-avx2": ("2026-11-29-engine-avx2.json",),
    "sft-xeon-avx2": (),
    "embed-xeon-avx2": ("2026-11-29-embed-avx2.json", "2026-11-29-rerank-avx2.json"),
    "fast": ("2026-11-26-fast.json", "2026-11-27-fast-qa.json"),
    "sft": ("2026-11-27-sft.json", "2026-11-27-sft-lora.json"),
    "embed": ("2026-11-27-embed.json", "2026-11-27-rerank.json"),
    "quality": ("2026-11-26-quality.json",),
    "jobs": ("2026-11-27-jobs.json",),
    "profile": ("2026-11-29-profile.json",),
    "time": ("2026-11-23-time-to-quality.json", "2026-11-25-time-to-quality-qqp.json"),
}
# sections whose rows stand in the same table
TRAINERS = ("engine", "sft", "embed")
WITH_AMX = (*TRAINERS, "fast")
ENGINE = {
    "mrpc": "MRPC, DistilBERT-base, batch 32",
    "squad": "SQuAD, DistilBERT-base, batch 16",
    "gpt2": "language model on Shakespeare, GPT-2 124M, 4 x 512 tokens",
    "mrpc-bert": "MRPC, BERT-base, batch 32",
    "squad-bert-large": "SQuAD, BERT-large, batch 12",
    "ner": "NER on MRPC's sentences, DistilBERT-base, batch 32",
    "mlm": "masked LM on Shakespeare, DistilBERT-base, 8 x 256 tokens",
    "seq2seq": "question generation on SQuAD, T5-small, batch 16",
}
SCRIPTS = {
    "glue": "run_glue.py on MRPC, DistilBERT-base, padded to 128 tokens",
    "qa": "run_qa.py on SQuAD, DistilBERT-base, padded to 384 tokens",
    "clm": "run_clm.py on Shakespeare, GPT-2 124M",
}
SENTENCE_TRANSFORMERS = {
    "embed": ("sentence embeddings", "SentenceTransformerTrainer"),
    "rerank": ("reranker", "CrossEncoderTrainer"),
}
REMEDY = "measure both on the same machine, or give them separate sections in bench/speed_page.py"
TUNED, DEFAULT = "tuned baseline", "default settings, because no tuned baseline was measured"
AXIS = "times as fast as the baseline, on two cores of an Intel Xeon with AMX"
PICTURE = ROOT / "docs/speed.svg"


@dataclass(frozen=True)
class Comparison:
    """A comparison of tools for the same work in one run; numbers are in `unit`.

    Attributes:
        work: the model and its data.
        instead: the tool that a user would take without ftcluster.
        theirs: speed of the peer with its default settings; None: not measured.
        tuned: speed of the peer with its own options and the allocator; None: not measured.
        limit: ours as a part of what the model's matmuls alone would reach; 0 if unknown.
    """

    work: str
    instead: str
    theirs: float | None
    tuned: float | None
    ours: float
    unit: str
    limit: float = 0.0

    def ratios(self) -> tuple[float | None, float | None]:
        """Return our speed relative to the tuned baseline, and to the default settings."""
        by_tuned, by_theirs = (self.ours / by if by else None for by in (self.tuned, self.theirs))
        return by_tuned, by_theirs


def read(name: str) -> list[Any]:
    """Return the measurements of a section, the oldest first.

    Raises:
        SystemExit: the files come from different machines.
    """
    same_machine(_machines(name), REMEDY)
    return [_content(file) for file in FILES[name]]


def one_machine(*names: str, apart: Collection[str] = ()) -> dict[str, Any]:
    """Return the machine of all files of some sections, whose rows are merged or compared.

    Args:
        apart: names of facts that may differ, because the rows of the table state them.

    Raises:
        SystemExit: the files come from different machines.
    """
    machines = _machines(*names)
    same_machine(machines, REMEDY, apart)
    return next(iter(machines.values()))


def _machines(*names: str) -> dict[str, dict[str, Any]]:
    """Return the machine of each file of some sections."""
    return {
        f"bench/results/{file}" + (f", part {number}" if number else ""): machine_of(one)
        for name in names
        for file in FILES[name]
        for number, one in enumerate(_each(_content(file)))
    }


def _content(file: str) -> Any:
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def speeds(name: str) -> dict[str, Any]:
    """Return the last measurement of each case."""
    found: dict[str, Any] = {}
    for one in read(name):
        found |= one["speed"]
    return found


def comparisons() -> Iterator[Comparison]:
    """Return all comparisons that were measured with AMX.

    Raises:
        SystemExit: they come from different machines.
    """
    one_machine(*WITH_AMX)
    yield from of_engine("engine")
    yield from of_scripts()
    yield from of_sft("sft")
    yield from of_embeddings("embed")


def without_amx(instructions: str) -> list[Comparison]:
    """Return the measurements with other instructions than AMX.

    Raises:
        SystemExit: they come from different machines.
    """
    one_machine(*(f"{name}-{instructions}" for name in TRAINERS))
    return [
        *of_engine(f"engine-{instructions}"), *of_sft(f"sft-{instructions}"),
        *of_embeddings(f"embed-{instructions}"),
    ]  # fmt: skip


def of_engine(name: str) -> Iterator[Comparison]:
    """Return the comparisons of trainings with Trainer."""
    for case, found in speeds(name).items():
        stock, tuned, ours = (
            found.get(way, {}).get("samples_per_second") for way in ("stock", "tuned", "ours")
        )
        yield Comparison(
            ENGINE[case], "transformers' Trainer", stock, tuned, ours, "samples/s",
            found["ours"]["share_of_limit"],
        )  # fmt: skip


def of_scripts() -> Iterator[Comparison]:
    """Return the comparisons of scripts with `ftcluster run`."""
    for name, found in speeds("fast").items():
        script = {way: of["samples_per_second"] for way, of in found["variants"].items()}
        instead = "`python SCRIPT`; tuned: `ftcluster run` without `--fast`"
        yield Comparison(
            SCRIPTS[name], instead, script["alone"], script["allocator"], script["fast"],
            "samples/s",
        )  # fmt: skip
        if "tuned" in script:
            script_name = SCRIPTS[name].rpartition(", ")[0]
            work = f"{script_name}, padded to the longest of the batch"
            yield Comparison(
                work, instead, None, script["tuned"], script["tuned, fast"], "samples/s"
            )


def of_sft(name: str) -> Iterator[Comparison]:
    """Return the comparisons of instruction tuning with TRL."""
    latest = {(one["shape"], one["lora_r"]): one for file in read(name) for one in _each(file)}
    for found in latest.values():
        trl, tuned, ours = (
            found["speed"].get(way, {}).get("tokens_per_second")
            for way in ("trl", "trl, tuned", "ours")
        )
        work = f"instruction tuning, {found['shape']}, "
        work += f"LoRA of rank {found['lora_r']}" if found["lora_r"] else "all weights"
        limit = found["speed"]["ours"].get("share_of_limit", 0)
        yield Comparison(work, "TRL's SFTTrainer", trl, tuned, ours, "tokens/s", limit)


def of_embeddings(name: str) -> Iterator[Comparison]:
    """Return the comparisons of embeddings and rerankers with sentence-transformers."""
    for task, one in {one.get("task", "embed"): one for one in read(name)}.items():
        stock, tuned, ours = (
            one["speed"].get(way, {}).get("pairs_per_second") for way in ("stock", "tuned", "ours")
        )
        work, trainer = SENTENCE_TRANSFORMERS[task]
        work = f"{work}, MiniLM, {one['batch']} pairs of SQuAD"
        limit = one["speed"]["ours"].get("share_of_limit", 0)
        yield Comparison(work, trainer, stock, tuned, ours, "pairs/s", limit)


def speed_ups() -> str:
    """Return the speed-ups over tuned and default baselines by instruction set, in Markdown."""
    ways = {
        f"AMX ({short_name(one_machine(*WITH_AMX))})": list(comparisons()),
        f"AVX512-BF16 ({_without('avx512-bf16')})": without_amx("avx512-bf16"),
        f"AVX2, fp32 ({_without('avx2')})": without_amx("avx2"),
    }
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for way, found in ways.items():
        for one in found:
            by_tuned, by_default = (f"{ratio:.1f}" if ratio else "" for ratio in one.ratios())
            text = f"**{by_tuned}**" + (f" ({by_default})" if by_default else "")
            baseline = one.instead.partition(";")[0]
            cells.setdefault((one.work, baseline), {})[way] = text
    lines = [f"| training | baseline | {' | '.join(ways)} |", "|---" * 5 + "|"]
    for (work, instead), by_way in cells.items():
        ratios = " | ".join(by_way.get(way, "") for way in ways)
        lines.append(f"| {work} | {instead} | {ratios} |")
    return "\n".join(lines)


def _without(instructions: str) -> str:
    return short_name(one_machine(*(f"{name}-{instructions}" for name in TRAINERS)))


def summary(found: list[Comparison]) -> str:
    """Format all comparisons as a Markdown table."""
    lines = [
        "| training | baseline | default settings | tuned baseline | ftcluster | ratio to tuned "
        "| to default | of the matmul peak |",
        "|---" * 8 + "|",
    ]
    for one in found:
        theirs, tuned = (f"{v:.3g}" if v else "not measured" for v in (one.theirs, one.tuned))
        by_tuned, by_theirs = (f"{ratio:.1f}" if ratio else "" for ratio in one.ratios())
        lines.append(
            f"| {one.work} | {one.instead} | {theirs} | {tuned} | {one.ours:.3g} {one.unit} "
            f"| {f'**{by_tuned}**' if by_tuned else ''} | {by_theirs} "
            f"| {f'{one.limit:.0%}' if one.limit else ''} |"
        )
    return "\n".join(lines)


def machines() -> str:
    """Return a Markdown table with the machine and versions of each file of results."""
    lines = ["| results | CPU | matmuls, TFLOP/s | versions |", "|---|---|---|---|"]
    for files in FILES.values():
        for file in files:
            for machine in map(machine_of, _each(_content(file))):
                rate = machine.get("products_per_second", 0) / 1e12
                versions = ", ".join(map(" ".join, machine.get("versions", {}).items()))
                lines.append(
                    f"| {file} | {machine['cpu']}, {machine['cores']} cores, "
                    f"{' '.join(machine['instructions'])}{_limits(machine)} "
                    f"| {f'{rate:.2f}' if rate else ''} "
                    f"| {versions or 'not noted'} |"
                )
    return "\n".join(dict.fromkeys(lines))


def _limits(machine: dict[str, Any]) -> str:
    """Return the variables that hide instructions of the machine's CPU."""
    return "".join(f", {name}={value}" for name, value in machine.get("limits", {}).items())


def _each(found: Any) -> list[dict[str, Any]]:
    """Return the measurements of a file of results, which has one or a list."""
    return found if isinstance(found, list) else [found]


def bars(found: list[Comparison]) -> list[dict[str, Any]]:
    """Return the bars of the picture; a ratio is written as in the tables."""
    rows = []
    for place, one in enumerate(found):
        by_tuned, by_default = one.ratios()
        ratio = by_tuned or by_default or 0.0
        against = TUNED if by_tuned else DEFAULT
        work = one.work.replace("`", "")
        rows.append({"training": work, "ratio": ratio, "text": f"{ratio:.1f}", "place": place,
                     "against": against})  # fmt: skip
    return rows


def picture(found: list[Comparison]) -> str:
    """Return the ratios to the tuned baseline, or else to default settings, as SVG."""
    rows = bars(found)
    against = list(dict.fromkeys(row["against"] for row in rows))
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("training:N", sort=alt.SortField("place"), title=None,
                axis=alt.Axis(labelLimit=600, domain=False, ticks=False)),
        x=alt.X("ratio:Q", title=AXIS),
    )  # fmt: skip
    colored = base.mark_bar(height=16).encode(
        color=alt.Color(
            "against:N", title=None, legend=alt.Legend(orient="bottom", labelLimit=600),
            scale=alt.Scale(domain=against, range=["#2563eb", "#9db7ee"][: len(against)]),
        )
    )  # fmt: skip
    ratios = base.mark_text(align="left", dx=4, fontSize=13).encode(text="text:N")
    same = alt.Chart(alt.Data(values=[{"x": 1}])).mark_rule(color="#9aa3af").encode(x="x:Q")
    chart = (colored + same + ratios).properties(width=420)
    spec = chart.to_dict()
    spec["config"] = {**THEME, "background": "white"}
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def times_to_a_metric() -> str:
    """Format stock's schedules and shorter schedules as a Markdown table."""
    lines = [
        "| all-MiniLM-L6-v2 | metric, stock schedule | metric, shorter schedule | seconds, stock "
        "| seconds, shorter | ratio |",
        "|---|---|---|---|---|---|",
    ]
    names = {"mrpc": "MRPC", "squad": "SQuAD", "qqp": "QQP, 6,000 pairs"}
    trainings = (item for one in read("time") for item in one["trainings"].items())
    for case, ways in trainings:
        stock, short = ways["stock"], ways["short"]
        scale = 1 if case == "squad" else 100
        of = [
            " / ".join(
                mean_and_spread([scale * value for value in way[name]["values"]], ".1f")
                for name in METRICS[case]
            )
            for way in (stock, short)
        ]
        of += [mean_and_spread(way["seconds"]["values"], ".0f") for way in (stock, short)]
        ratio = mean_and_spread(short["seconds"]["stock_over_this"], ".2f")
        what = " / ".join(METRICS[case]).replace("_", " ")
        lines.append(f"| {names[case]}: {what} | {' | '.join(of)} | **{ratio}** |")
    return "\n".join(lines)


def shown(row: dict[str, Any]) -> bool:
    """Return True if both have the metric and no other form of it is shown."""
    return {"trainer", "ours"} <= row.keys() and row["metric"] != "perplexity"


def by_precision() -> dict[tuple[str, str], Any]:
    """Return the engine's measurements by case and precision.

    Raises:
        SystemExit: they come from different machines.
    """
    one_machine("engine", "engine-fp32", apart=("precision",))
    return {
        (case, precision): found
        for name, precision in (("engine", "bf16"), ("engine-fp32", "fp32"))
        for case, found in speeds(name).items()
    }


def jobs() -> str:
    """Format the common jobs as a Markdown table."""
    lines = [
        "| job | `ftcluster train` | seconds | of them training | metric "
        "| compared with its peer by |",
        "|---|---|---|---|---|---|",
    ]
    for one in read("jobs")[-1]["jobs"]:
        metric, value = one["metric"].replace("_", " "), one["value"]
        test = f"[{one['equal']}](../../tests/engine/{one['equal']})"
        lines.append(
            f"| {one['job']} | `{one['recipe']}` | {one['seconds']:.0f} | {one['training']:.0f} "
            f"| {metric} {value:.3g} | {test} |"
        )
    return "\n".join(lines)


def tables(found: list[Comparison]) -> dict[str, str]:
    """Return the page's tables by name."""
    return {
        "speed-ups": speed_ups(),
        "summary": summary(found),
        "avx512-bf16": summary(without_amx("avx512-bf16")),
        "avx2": summary(without_amx("avx2")),
        "xeon-bf16": summary(without_amx("xeon-bf16")),
        "xeon-avx2": summary(without_amx("xeon-avx2")),
        "machines": machines(),
        "quality": of_quality([row for row in read("quality")[-1]["quality"] if shown(row)]),
        "time": times_to_a_metric(),
        "jobs": jobs(),
        "published": of_published(by_precision(), one_machine("engine")["threads"]),
        "profile": of_profiles(read("profile")[-1]["profiles"]),
    }


def published_errors(results: dict[tuple[str, str], Any], precision: str) -> list[float]:
    """Return predicted over published times of Trainer, for all that were published."""
    return errors(results, one_machine("engine")["threads"], precision)


def draw() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(list(comparisons())) + "\n", encoding="utf-8")
