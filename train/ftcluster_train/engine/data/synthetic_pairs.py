"""Generate sentence pairs for the quickstart recipe from a seed.

The quickstart fine-tunes a small encoder to decide whether two sentences have the same meaning.
Rows have the columns of MRPC: `sentence1`, `sentence2` and `label` (1 for the same meaning, 0 for
different meanings). The quickstart must run without access to the Hub, so the rows are generated.

Both sentences describe an event: who did what to what kind of thing, where and when. The second
sentence replaces some words of the first sentence, and may have another sentence form.

Pairs are generated two at a time, with the same first sentence. In one pair the replaced words are
synonyms (label 1). In the other pair they are words of the same kind with another meaning
(label 0). Every word, length, form and overlap is equally frequent with both labels, so a bag of
words cannot distinguish the labels. Memorising synonyms does not help either: except for the times
of day, validation uses other people, actions and things than training. The task needs a pretrained
model, whose embeddings represent the meanings of words.
"""

import random

Row = dict[str, str | int]
Part = tuple[tuple[str, str], ...]

TRAINING_SHARE = 2 / 3  # fraction of each part's meanings that is reserved for the split train
OTHER_WORDS = (3, 4)  # number of replaced words; with two, training takes much longer

# Each entry is one meaning; its two words are interchangeable.
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

# The numbers are indices into PARTS: 0 who, 1 did, 2 what kind of, 3 what, 4 where, 5 when.
FORMS = (
    "The {0} {1} a {2} {3} at the {4} at {5}.",
    "At {5}, the {0} {1} a {2} {3} at the {4}.",
    "At the {4}, the {0} {1} a {2} {3} at {5}.",
    "A {2} {3} was {1} by the {0} at the {4} at {5}.",
    "At {5}, a {2} {3} was {1} by the {0} at the {4}.",
)


def generate(seed: int, count: int, split: str) -> list[Row]:
    """Return the rows of one split; the result depends only on the arguments.

    Half of the rows have label 1. The splits train and validation have no sentence in common.
    """
    rng = random.Random(f"{seed} {split}")
    vocabulary = [_share(part, split) for part in PARTS]
    rows: list[Row] = []
    while len(rows) < count:
        rows += _twins(rng, vocabulary)
    return rows[:count]


def _share(part: Part, split: str) -> Part:
    """Return the meanings that a split uses for one part of a sentence."""
    if part is TIMES:
        return part  # too few meanings to divide
    border = round(len(part) * TRAINING_SHARE)
    return part[:border] if split == "train" else part[border:]


def _twins(rng: random.Random, vocabulary: list[Part]) -> list[Row]:
    """Return two rows with the same first sentence, one for each label, in random order."""
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
