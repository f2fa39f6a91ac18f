"""Sentence pairs for the quickstart recipe, generated from a seed.

The quickstart fine-tunes a small encoder to tell whether two sentences mean the same, on rows in
the form of MRPC: ``sentence1``, ``sentence2`` and ``label`` (1 for the same meaning, 0 for another
one). It has to run on a cluster that cannot reach the Hub, so the rows are made here.

They are made in the manner of PAWS. Every pair is a paraphrase by one of a few constructions
(active and passive, converse verbs, before and after, ...). In a pair labelled 0 the second
sentence has two of its participants exchanged, so that it says something else with the very same
words. The pairs come as twins: for each one labelled 1 there is one labelled 0 with the same first
sentence and a second sentence of the same words in another order. No count of words, overlap,
length or presence of a word can thus tell the labels apart; a model has to read who did what to
whom, or what came first.
"""

import random
from dataclasses import dataclass

SPLITS = ("train", "validation")

# One pair of participants in this many belongs to the validation split.
_VALIDATION_SHARE = 5


@dataclass(frozen=True)
class _Lexicon:
    """Words that go together, a row of them per scene; ``|`` separates synonyms."""

    slots: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Construction:
    """A way to say one thing in several forms.

    The forms in ``straight`` mention participant a first, those in ``inverse`` participant b. All
    mean the same, and all mean something else once a and b are exchanged.
    """

    participants: tuple[str, ...]
    straight: tuple[str, ...]
    inverse: tuple[str, ...]
    lexicons: tuple[_Lexicon, ...]


def _lexicon(slot: str, *words: str) -> _Lexicon:
    return _Lexicon((slot,), tuple((word,) for word in words))


_PEOPLE = tuple(
    f"the {profession}"
    for profession in (
        *("actor", "baker", "banker", "barber", "captain", "chef", "clerk", "coach", "dancer"),
        *("doctor", "driver", "editor", "engineer", "farmer", "guard", "guide", "judge", "lawyer"),
        *("miner", "nurse", "painter", "pilot", "poet", "priest", "sailor", "singer", "soldier"),
        *("student", "tailor", "teacher", "waiter", "writer"),
    )
)
_CITIES = (
    *("Athens", "Berlin", "Boston", "Cairo", "Chicago", "Delhi", "Dublin", "Geneva", "Lima"),
    *("Lisbon", "London", "Madrid", "Milan", "Moscow", "Oslo", "Paris", "Prague", "Rome"),
    *("Seattle", "Sydney", "Tokyo", "Toronto", "Vienna", "Warsaw"),
)
_EVENTS = (
    *("the bank closed|the bank shut", "the film began|the film started", "the bell rang"),
    *("the concert ended|the concert finished", "the train left|the train departed"),
    *("the guests arrived|the guests came", "the market opened", "the bridge collapsed"),
    *(
        "the ship sank",
        "the lights failed|the lights went out",
        "the king died",
        "the rain stopped",
    ),
    *("the river froze|the river iced over", "the dog barked", "the war began|the war started"),
    *("the snow melted|the snow thawed", "the alarm sounded|the alarm went off"),
    *("the plane landed|the plane touched down", "the strike ended|the strike finished"),
    *("the fire spread", "the crowd cheered|the crowd applauded", "the priest spoke"),
)
_TIMES = _lexicon(
    "time",
    *("yesterday", "on Monday", "on Friday", "in June", "last week", "last year", "at noon"),
    *("that evening", "this morning", "in the spring", "after the war", "at midnight"),
)
_THINGS = _lexicon(
    "thing",
    *("a book", "a bike|a bicycle", "a car|an automobile", "a coat", "a clock", "a couch|a sofa"),
    *("a guitar", "a horse", "a house", "a knife", "a lamp", "a map", "a painting", "a ring"),
    *("a ticket", "a violin"),
)

_CONSTRUCTIONS = (
    # Active and passive.
    _Construction(
        participants=_PEOPLE,
        straight=("{a} {verb} {b} {time}", "{time}, {a} {verb} {b}"),
        inverse=("{b} was {verb} by {a} {time}", "{time}, {b} was {verb} by {a}"),
        lexicons=(
            _lexicon(
                "verb",
                *("praised|commended", "helped|assisted", "hired|employed", "called|phoned"),
                *("saved|rescued", "cured|healed", "fired|dismissed", "mocked|ridiculed"),
                *("trained|coached", "scared|frightened", "hit|struck", "hurt|injured"),
                *("visited", "invited", "thanked", "arrested", "followed", "betrayed"),
            ),
            _TIMES,
        ),
    ),
    # Dative alternation and converse verbs.
    _Construction(
        participants=_PEOPLE,
        straight=("{a} {gave} {b} {thing} {time}", "{time}, {a} {gave} {thing} to {b}"),
        inverse=(
            "{b} {received} {thing} from {a} {time}",
            "{time}, {b} was {given} {thing} by {a}",
        ),
        lexicons=(
            _Lexicon(
                ("gave", "given", "received"),
                (
                    ("gave", "given", "received|got"),
                    ("sold", "sold", "bought|purchased"),
                    ("lent|loaned", "lent|loaned", "borrowed"),
                ),
            ),
            _THINGS,
            _TIMES,
        ),
    ),
    # Before and after.
    _Construction(
        participants=_EVENTS,
        straight=("{a} before {b}", "after {a}, {b}"),
        inverse=("{b} after {a}", "before {b}, {a}"),
        lexicons=(),
    ),
    # Comparison by either of two opposites.
    _Construction(
        participants=_PEOPLE,
        straight=("{a} is {much} {more} than {b}", "compared with {a}, {b} is {much} {less}"),
        inverse=("{b} is {much} {less} than {a}", "compared with {b}, {a} is {much} {more}"),
        lexicons=(
            _Lexicon(
                ("more", "less"),
                (
                    *(("older", "younger"), ("younger", "older"), ("taller", "shorter")),
                    *(("shorter", "taller"), ("richer", "poorer"), ("poorer", "richer")),
                    *(("faster", "slower"), ("slower", "faster"), ("stronger", "weaker")),
                    *(("weaker", "stronger"), ("louder", "quieter"), ("quieter", "louder")),
                ),
            ),
            _lexicon("much", "much|far|a lot"),
        ),
    ),
    # Two clauses in either order.
    _Construction(
        participants=_PEOPLE,
        straight=("{a} {did} while {b} {acted}", "while {a} {did}, {b} {acted}"),
        inverse=("{b} {acted} while {a} {did}", "while {b} {acted}, {a} {did}"),
        lexicons=(
            _lexicon("did", "sang", "slept|was asleep", "cooked", "danced"),
            _lexicon("acted", "read", "swam", "talked|spoke", "cried|wept"),
        ),
    ),
    # Origin and destination.
    _Construction(
        participants=_CITIES,
        straight=("{who} travelled from {a} to {b} {time}", "{time}, {who} left {a} for {b}"),
        inverse=("{who} travelled to {b} from {a} {time}", "{time}, {who} reached {b} from {a}"),
        lexicons=(_lexicon("who", *_PEOPLE), _TIMES),
    ),
)


def generate(seed: int, count: int, split: str) -> list[dict[str, str | int]]:
    """Make ``count`` different pairs of a split, the same ones each time for the same seed.

    Half of the pairs have label 1 and half label 0 (one more of either if ``count`` is odd). The
    splits never exchange the same two participants, whatever their seeds, so that the validation
    split shares no pair with the training split and measures more than memory.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}, expected one of {', '.join(SPLITS)}")
    rng = random.Random(f"{split} {seed}")
    pairs: dict[tuple[str, str], int] = {}
    while len(pairs) < count:
        construction = rng.choice(_CONSTRUCTIONS)
        first, same, other = _twins(rng, construction, split)
        if (first, same) not in pairs and (first, other) not in pairs:
            pairs[first, same] = 1
            pairs[first, other] = 0
    rows: list[dict[str, str | int]] = [
        {"sentence1": first, "sentence2": second, "label": label}
        for (first, second), label in pairs.items()
    ][:count]
    rng.shuffle(rows)
    return rows


def _twins(rng: random.Random, construction: _Construction, split: str) -> tuple[str, str, str]:
    """Make a sentence, one of the same meaning and one that differs from that by an exchange."""
    a, b = _participants(rng, construction.participants, split)
    slots = {"a": a, "b": b}
    for lexicon in construction.lexicons:
        slots |= zip(lexicon.slots, rng.choice(lexicon.rows), strict=True)
    orders = (construction.straight, construction.inverse)
    # Drawn apart from the forms, so that the order of mention tells no more than the words do.
    first_order, second_order = rng.choice(orders), rng.choice(orders)
    while True:
        first = _realize(rng.choice(first_order), _word(rng, slots))
        form, words = rng.choice(second_order), _word(rng, slots)
        second = _realize(form, words)
        if second != first:
            return first, second, _realize(form, words | {"a": words["b"], "b": words["a"]})


def _participants(rng: random.Random, participants: tuple[str, ...], split: str) -> tuple[str, str]:
    """Draw two participants that are met together in this split only."""
    while True:
        a, b = rng.sample(range(len(participants)), 2)
        if ((a + b) % _VALIDATION_SHARE == 0) == (split == "validation"):
            return participants[a], participants[b]


def _word(rng: random.Random, slots: dict[str, str]) -> dict[str, str]:
    """Choose a synonym for every slot."""
    return {slot: rng.choice(words.split("|")) for slot, words in slots.items()}


def _realize(form: str, words: dict[str, str]) -> str:
    """Write a form out as a sentence."""
    sentence = form.format_map(words)
    return f"{sentence[0].upper()}{sentence[1:]}."
