"""Invalid rows of Parquet and Hub data are refused like invalid rows of text files."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from ftcluster_common.tasks.chat import InstructionTuning, PreferenceTuning
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_common.tasks.ner import TokenClassification
from ftcluster_common.tasks.rerank import TextRanking
from ftcluster_common.tasks.spec import Options
from ftcluster_common.tasks.squad import QuestionAnswering
from ftcluster_common.tasks.unpaired import UnpairedPreferenceTuning
from ftcluster_train.engine.data.sources import check_rows, load_rows
from ftcluster_train.errors import TrainError
from tests.bad_rows import BAD, check_said

OPTIONS: dict[str, Options] = {
    "classify": TextClassification(), "squad": QuestionAnswering(), "embed": SentenceSimilarity(),
    "ner": TokenClassification(), "rerank": TextRanking(), "sft": InstructionTuning(),
    "dpo": PreferenceTuning(), "kto": UnpairedPreferenceTuning(),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("number", [3, 0])
@pytest.mark.parametrize("from_hub", [False, True], ids=["parquet", "hub"])
def test_each_bad_row_has_its_file_and_number(
    tmp_path: Path, name: str, number: int, from_hub: bool
) -> None:
    one = BAD[name]
    rows: Any = datasets.Dataset.from_list(one.rows(number))
    where = "row 3 of train"
    if not from_hub:
        where = "rows.parquet: row 3"
        rows.to_parquet(str(tmp_path / "rows.parquet"))
        [rows] = load_rows(str(tmp_path / "rows.parquet"), None).values()
    with pytest.raises(TrainError) as caught:
        check_rows(rows, "train", OPTIONS[one.recipe], answered=True)
    check_said(str(caught.value), where, one.said)
