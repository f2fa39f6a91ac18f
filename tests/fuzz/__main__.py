"""Throws damaged input at readers and writers for a while; prints each new problem with its input.

    .venv-dev/bin/python -m tests.fuzz --minutes 60 [READER|WRITER ...]

Exit code 1 if there was any. Memory is limited to 4 GB, so that what takes too much is one.
"""

import argparse
import random
import resource
import sys
import time

from tests.programs import ROOT

sys.path[:0] = [str(ROOT / name) for name in ("runner", "common", "train")]
import tests.unit.conftest  # noqa: E402, F401  the collection by its name
from tests.fuzz.host_answers import HOST_ANSWERS  # noqa: E402
from tests.fuzz.inputs import PIECES, answered, damaged, problem  # noqa: E402
from tests.fuzz.parsers import NASTY  # noqa: E402
from tests.fuzz.parsers import PARSERS as FILES  # noqa: E402
from tests.fuzz.writers import WRITERS  # noqa: E402

PARSERS = FILES | HOST_ANSWERS | WRITERS

SECONDS = 3.0
MEMORY = 4 << 30


def main() -> int:
    """Run the program and return the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("readers", nargs="*", metavar="READER", help=", ".join(PARSERS))
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    unknown = set(given.readers) - set(PARSERS)
    if unknown:
        options.error(f"no such reader: {', '.join(sorted(unknown))}")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    chance = random.Random(given.seed)
    names = given.readers or list(PARSERS)
    pools = {name: [*PARSERS[name].seeds, *NASTY] for name in names}
    found: set[tuple[str, str]] = set()
    tried, end = 0, time.monotonic() + 60 * given.minutes
    while time.monotonic() < end:
        name = names[tried % len(names)]
        pool = pools[name]
        turn = tried // len(names)
        if turn < len(pool):
            data = pool[turn]
        elif chance.random() < 0.5:
            data = answered(chance.choice(PARSERS[name].seeds), chance)
        else:
            changes = [
                (chance.random(), chance.choice((0, 1, 4, 40)),
                 chance.choice((*PIECES, chance.randbytes(chance.randrange(8)))))
                for _ in range(chance.randrange(1, 7))
            ]  # fmt: skip
            data = damaged(chance.choice(pool), changes)
        said = problem(PARSERS[name], data, SECONDS)
        kind = (name, said.partition(": ")[0])
        if said and kind not in found:
            found.add(kind)
            print(f"{name}: {said}\n  {data[:300]!r} ({len(data)} bytes)", flush=True)
        tried += 1
    seconds = time.process_time()
    print(
        f"{tried} inputs to {len(names)} readers and writers, seed {given.seed}, in "
        f"{seconds / 60:.0f} minutes of CPU time: {len(found)} problems"
    )
    return 1 if found else 0


sys.exit(main())
