"""Token samples: written once per host, and memory-mapped by all ranks on the host.

A folder contains `about.json` and two files for each column: the values of all samples
(`<name>.values`) and the end index of each sample (`<name>.ends`, 64 bits each). Values have the
byte order of the machine, because only the machine that writes the files reads them.

Standard library only.
"""

import hashlib
import json
import mmap
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

ENDS = "q"
LENGTHS = "i"
FLUSH_AT = 1 << 16  # number of values per column that are buffered in memory before a write
Sample = dict[str, list[Any]]


def token_kind(vocabulary: int) -> str:
    """Return the type code (module array) for token ids below `vocabulary`."""
    return "H" if vocabulary <= 1 << 16 else "i"


class SampleWriter:
    """Writes samples into a folder, and buffers only a few of them in memory.

    Args:
        kinds: type code of each column, as in the module array.
    """

    def __init__(self, folder: Path, kinds: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._kinds = dict(kinds)
        self._count = 0
        self._digest = hashlib.sha256()
        self._columns = [_ColumnWriter(folder, name, kind) for name, kind in kinds.items()]

    def __len__(self) -> int:
        return self._count

    def add(self, sample: Mapping[str, Sequence[Any]]) -> None:
        """Append a sample, which has values for each column."""
        for column in self._columns:
            self._digest.update(column.add(sample[column.name]))
        self._count += 1

    def close(self, **about: Any) -> None:
        """Close the files, and save the arguments, which readers find in `Samples.about`."""
        for column in self._columns:
            column.close()
        document = {
            **about,
            "count": self._count,
            "kinds": self._kinds,
            "largest": {column.name: column.largest for column in self._columns},
            "sha256": self._digest.hexdigest(),
        }
        _write_about(self._folder, document)


class _ColumnWriter:
    def __init__(self, folder: Path, name: str, kind: str) -> None:
        self.name = name
        self.largest = 0
        self._values, self._ends = array(kind), array(ENDS)
        self._end = 0
        self._files = [(folder / f"{name}.{part}").open("wb") for part in ("values", "ends")]

    def add(self, values: Sequence[Any]) -> bytes:
        """Append a sample's values and return their bytes."""
        written = array(self._values.typecode, values)
        self._values.extend(written)
        self._end += len(written)
        self._ends.append(self._end)
        self.largest = max(self.largest, *written) if written else self.largest
        if len(self._values) >= FLUSH_AT:
            self._flush()
        return written.tobytes()

    def close(self) -> None:
        self._flush()
        for file in self._files:
            file.close()

    def _flush(self) -> None:
        for file, held in zip(self._files, (self._values, self._ends), strict=True):
            held.tofile(file)
            del held[:]


class Samples(Sequence[Sample]):
    """The samples of a folder that SampleWriter wrote.

    Attributes:
        about: contents of about.json: arguments of `SampleWriter.close`, `sha256` of all values,
            and `largest`, the largest value of each column.
    """

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self._count: int = self.about["count"]
        self._values = {
            name: _mapped(folder / f"{name}.values", kind)
            for name, kind in self.about["kinds"].items()
        }
        self._ends = {name: _mapped(folder / f"{name}.ends", ENDS) for name in self._values}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return {
            name: values[self._begin(name, index) : self._ends[name][index]].tolist()
            for name, values in self._values.items()
        }

    def lengths(self, column: str) -> "array[int]":
        """Return how many values each sample has in a column."""
        ends = self._ends[column][: self._count]
        begins = chain([0], ends)
        return array(LENGTHS, (end - begin for begin, end in zip(begins, ends, strict=False)))

    def _begin(self, name: str, index: int) -> int:
        begin: int = self._ends[name][index - 1] if index else 0
        return begin


class JoinedSamples(Samples):
    """The samples of several sets, one set after the other.

    Attributes:
        about: `about` of the first set, but `count`, `largest` and `sha256` cover all sets.
    """

    def __init__(self, sets: Sequence[Samples]) -> None:
        self._sets = tuple(sets)
        self._starts = [*accumulate(map(len, sets), initial=0)]
        self._count = self._starts[-1]
        digests = "".join(samples.about["sha256"] for samples in sets)
        largest: dict[str, Any] = {}
        for samples in sets:
            for name, value in samples.about["largest"].items():
                largest[name] = max(value, largest.get(name, value))
        self.about = {
            **sets[0].about,
            "count": self._count,
            "largest": largest,
            "sha256": hashlib.sha256(digests.encode()).hexdigest(),
        }

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        return self._sets[number][index - self._starts[number]]

    def lengths(self, column: str) -> "array[int]":
        """Return how many values each sample has in a column."""
        lengths = array(LENGTHS)
        for samples in self._sets:
            lengths.extend(samples.lengths(column))
        return lengths


def joined(sets: Sequence[Samples]) -> Samples:
    """Return the samples of all sets; a single set is returned unchanged."""
    return sets[0] if len(sets) == 1 else JoinedSamples(sets)


def move_tail(source: Path, target: Path, count: int) -> None:
    """Move the last `count` samples from the folder `source` into the new folder `target`."""
    samples = Samples(source)
    left = len(samples) - count
    writer = SampleWriter(target, samples.about["kinds"])
    for index in range(left, len(samples)):
        writer.add(samples[index])
    writer.close()
    _write_about(source, {**samples.about, "count": left})


def _mapped(path: Path, kind: str) -> memoryview:
    with path.open("rb") as file:
        empty = path.stat().st_size == 0  # an empty file cannot be mapped
        data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return memoryview(data).cast(kind)  # type: ignore[call-overload, no-any-return]


def _write_about(folder: Path, document: Mapping[str, Any]) -> None:
    (folder / "about.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
