"""Sentence pairs for the quickstart recipe, generated from a seed.

The quickstart fine-tunes a small encoder to tell whether two sentences mean the same, on rows in
the form of MRPC: `sentence1`, `sentence2` and `label` (1 for the same meaning, 0 for another one).
It has to run on a cluster that cannot reach the Hub, so the rows are made here.

Both sentences of a pair tell of one event: who did what to what kind of thing, where and when. The
second one tells it anew, in another form or the same, with some of its parts in other words. Pairs
come as twins with a common first sentence: in one of them those other words are synonyms (label
1), in its twin they are words of the same kind with another meaning (label 0). So every word,
length, form and overlap is as frequent under one label as under the other, and no bag of words can
tell them apart. Nor does it help to learn by heart which words go together: but for the times of
day, validation speaks of people, actions and things that training never names. It takes a model
that came knowing what words mean.
"""

import random

Row = dict[str, str | int]
Part = tuple[tuple[str, str], ...]

SPLITS = ("train", "validation")
TRAINING_SHARE = 2 / 3  # of the meanings of each part
OTHER_WORDS = (3, 4)  # parts told in other words; two take a small encoder several times as long

# One meaning an entry; each of its two words can stand for the other.
PEOPLE = (
    ("doctor", "physician"), ("lawyer", "attorney"), ("boss", "manager"), ("author", "writer"),
    ("kid", "child"), ("thief", "robber"), ("reporter", "journalist"), ("singer", "vocalist"),
    ("priest", "clergyman"), ("sailor", "seaman"), ("scientist", "researcher"), ("cook", "chef"),
)  # fmt: skip
ACTIONS = (
    ("bought", "purchased"), ("fixed", "repaired"), ("buried", "interred"), ("lost", "misplaced"),
    ("destroyed", "demolished"), ("discovered", "found"), ("sketched", "depicted"),
    ("cleaned", "washed"), ("moved", "relocated"), ("lifted", "raised"),
)  # fmt: skip
KINDS = (
    ("big", "large"), ("small", "little"), ("costly", "pricey"), ("shiny", "glossy"),
    ("dirty", "filthy"), ("peculiar", "strange"), ("broken", "damaged"), ("wet", "damp"),
)  # fmt: skip
THINGS = (
    ("car", "automobile"), ("sofa", "couch"), ("bike", "bicycle"), ("picture", "photo"),
    ("rug", "carpet"), ("phone", "telephone"), ("purse", "handbag"), ("gun", "firearm"),
    ("boat", "ship"), ("rock", "stone"), ("plane", "aircraft"), ("cup", "mug"), ("gem", "jewel"),
    ("present", "gift"),
)  # fmt: skip
PLACES = (
    ("store", "shop"), ("beach", "seashore"), ("hospital", "clinic"), ("airport", "airfield"),
    ("jail", "prison"), ("hotel", "inn"), ("graveyard", "cemetery"), ("harbor", "port"),
)  # fmt: skip
TIMES = (("noon", "midday"), ("dawn", "sunrise"), ("dusk", "sunset"), ("midnight", "bedtime"))
PARTS = (PEOPLE, ACTIONS, KINDS, THINGS, PLACES, TIMES)

# In the order of PARTS: 0 who, 1 did, 2 what kind of, 3 what, 4 where, 5 when.
FORMS = (
    "The {0} {1} a {2} {3} at the {4} at {5}.",
    "At {5}, the {0} {1} a {2} {3} at the {4}.",
    "At the {4}, the {0} {1} a {2} {3} at {5}.",
    "A {2} {3} was {1} by the {0} at the {4} at {5}.",
    "At {5}, a {2} {3} was {1} by the {0} at the {4}.",
)


def generate(seed: int, count: int, split: str) -> list[Row]:
    """Rows of one split, the same for the same arguments; half of them labelled 1.

    No sentence of a split is one of the other split, whatever their sizes.

    Args:
        seed: of both splits.
        count: number of rows.
        split: "train" or "validation".

    Raises:
        ValueError: there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"no split '{split}'; there are {', '.join(SPLITS)}")
    rng = random.Random(f"{seed} {split}")
    vocabulary = [_share(part, split) for part in PARTS]
    rows: list[Row] = []
    while len(rows) < count:
        rows += _twins(rng, vocabulary)
    return rows[:count]


def _share(part: Part, split: str) -> Part:
    """The meanings of one part that a split may use."""
    if part is TIMES:
        return part  # too few to be divided
    border = round(len(part) * TRAINING_SHARE)
    return part[:border] if split == "train" else part[border:]


def _twins(rng: random.Random, vocabulary: list[Part]) -> list[Row]:
    """Two rows with one first sentence, one of each label, in random order."""
    meanings = [rng.choice(part) for part in vocabulary]
    first = [rng.choice(words) for words in meanings]
    same, different = list(first), list(first)
    for i in rng.sample(range(len(vocabulary)), rng.choice(OTHER_WORDS)):
        same[i] = meanings[i][1 - meanings[i].index(first[i])]
        different[i] = rng.choice(rng.choice([m for m in vocabulary[i] if m != meanings[i]]))
    sentence1, form = rng.choice(FORMS).format(*first), rng.choice(FORMS)
    rows: list[Row] = [
        {"sentence1": sentence1, "sentence2": form.format(*parts), "label": label}
        for parts, label in ((same, 1), (different, 0))
    ]
    rng.shuffle(rows)
    return rows
