"""Writes the tables of docs/speed.md, and docs/speed.svg, from the measurements in bench/results.

    .venv-dev/bin/python -m bench.speed_page

from the repository's root. FILES names the measurement of each section.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

from bench.engine import ROOT
from bench.local_sync import METRICS
from bench.time_to_quality import mean_and_spread
from ftcluster.report.charts import THEME

RESULTS = ROOT / "bench/results"
FILES = {
    # where there are several, the later ones are of those cases that were measured again
    "engine": ("2026-11-25-engine.json", "2026-11-25-engine-gpt2.json"),
    "fast": ("2026-11-25-fast.json",),
    "sft": ("2026-11-25-sft.json",),
    "embed": ("2026-11-23-embed.json",),
    "time": ("2026-11-23-time-to-quality.json", "2026-11-25-time-to-quality-qqp.json"),
}
ENGINE = {
    "mrpc": "MRPC, DistilBERT-base, batch 32",
    "squad": "SQuAD, DistilBERT-base, batch 16",
    "gpt2": "Shakespeare, GPT-2 124M, 4 x 512 tokens",
}
SCRIPTS = {
    "glue": "run_glue.py on MRPC, DistilBERT-base",
    "qa": "run_qa.py on SQuAD, DistilBERT-base",
    "clm": "run_clm.py on Shakespeare, GPT-2 124M",
}
WAYS = {"stock": "Trainer", "ours": "ftcluster"}
PAGE, PICTURE = ROOT / "docs/speed.md", ROOT / "docs/speed.svg"


@dataclass(frozen=True)
class Comparison:
    """Work that was done in two ways in one run.

    Attributes:
        work: the model and its data.
        instead: what a user would take without ftcluster.
        theirs, ours: in `unit`.
        ratio: ours by theirs.
        limit: ours as a part of what the model's matrix products alone would reach; 0 if unknown.
    """

    work: str
    instead: str
    theirs: float
    ours: float
    unit: str
    ratio: float
    limit: float = 0.0


def read(name: str) -> list[Any]:
    """What was measured, the oldest first."""
    return [json.loads((RESULTS / file).read_text(encoding="utf-8")) for file in FILES[name]]


def speeds(name: str) -> dict[str, Any]:
    """By case, the last measurement."""
    found: dict[str, Any] = {}
    for one in read(name):
        found |= one["speed"]
    return found


def comparisons() -> Iterator[Comparison]:
    """All that were measured."""
    for name, found in speeds("engine").items():
        stock, ours = found["stock"], found["ours"]
        yield Comparison(
            ENGINE[name], "transformers' Trainer", stock["samples_per_second"],
            ours["samples_per_second"], "samples/s", ours["ratio"], ours["share_of_limit"],
        )  # fmt: skip
    for name, found in speeds("fast").items():
        alone, fast = found["variants"]["alone"], found["variants"]["fast"]
        yield Comparison(
            SCRIPTS[name], "the script without `--fast`", alone["samples_per_second"],
            fast["samples_per_second"], "samples/s", fast["ratio"],
        )  # fmt: skip
    latest = {(one["shape"], one["lora_r"]): one for file in read("sft") for one in file}
    for found in latest.values():
        trl, ours = found["speed"]["trl"], found["speed"]["ours"]
        work = f"instruction tuning, {found['shape']}, "
        work += f"LoRA of rank {found['lora_r']}" if found["lora_r"] else "all weights"
        yield Comparison(
            work, "TRL's SFTTrainer", trl["tokens_per_second"], ours["tokens_per_second"],
            "tokens/s", ours["tokens_per_second"] / trl["tokens_per_second"],
        )  # fmt: skip
    embed = read("embed")[-1]
    stock, ours = embed["speed"]["stock"], embed["speed"]["ours"]
    yield Comparison(
        f"sentence embeddings, MiniLM, {embed['batch']} pairs of SQuAD",
        "SentenceTransformerTrainer", stock["pairs_per_second"], ours["pairs_per_second"],
        "pairs/s", stock["times_of_ours"],
    )  # fmt: skip


def summary(found: list[Comparison]) -> str:
    """All comparisons as a Markdown table."""
    lines = [
        "| training | instead of | there | with ftcluster | ratio | of the products' limit |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.work} | {one.instead} | {one.theirs:.3g} {one.unit} | {one.ours:.3g} "
        f"| **{one.ratio:.1f}** | {f'{one.limit:.0%}' if one.limit else ''} |"
        for one in found
    ]
    return "\n".join(lines)


def picture(found: list[Comparison]) -> str:
    """The ratios as SVG."""
    rows = [
        {"training": one.work.replace("`", ""), "ratio": round(one.ratio, 2), "place": place}
        for place, one in enumerate(found)
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("training:N", sort=alt.SortField("place"), title=None,
                axis=alt.Axis(labelLimit=420, domain=False, ticks=False)),
        x=alt.X("ratio:Q", title="times as fast as what it is instead of"),
    )  # fmt: skip
    ratios = base.mark_text(align="left", dx=4, fontSize=13).encode(
        text=alt.Text("ratio:Q", format=".1f")
    )
    same = alt.Chart(alt.Data(values=[{"x": 1}])).mark_rule(color="#9aa3af").encode(x="x:Q")
    chart = (base.mark_bar(color="#2563eb", height=16) + same + ratios).properties(width=420)
    spec = chart.to_dict()
    spec["config"] = {**THEME, "background": "white"}
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def products_of_steps() -> str:
    """Where a step's time goes, as a Markdown table."""
    lines = ["| milliseconds of a step | all | products | anything else |", "|---|---|---|---|"]
    for name, found in speeds("engine").items():
        for way in ("stock", "ours"):
            profile = found[way].get("profile")
            if profile:
                other = profile["all"] - profile["products"]
                lines.append(
                    f"| {ENGINE[name]}: {WAYS[way]} | {profile['all']:,.0f} "
                    f"| {profile['products']:,.0f} | {other:,.0f} ({other / profile['all']:.0%}) |"
                )
    return "\n".join(lines)


def times_to_a_metric() -> str:
    """Stock's schedules and shorter ones, as a Markdown table."""
    lines = [
        "| all-MiniLM-L6-v2 | metric: stock's schedule | the shorter one | seconds: stock's "
        "| the shorter one | ratio |",
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


def tables(found: list[Comparison]) -> dict[str, str]:
    """The page's tables, by the names that it has for them."""
    return {
        "summary": summary(found),
        "steps": products_of_steps(),
        "time": times_to_a_metric(),
    }


def with_tables(page: str, found: list[Comparison]) -> str:
    """The page with its tables written anew, between two comments each."""
    for name, table in tables(found).items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
    return page


def main() -> int:
    """Write the page and its picture; returns the exit code."""
    found = list(comparisons())
    PICTURE.write_text(picture(found) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(page, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
