"""Generated rows for few-shot classification: the place of an event is the class of a sentence.

The training rows name each place by one word, and the test rows by its synonym. All other parts of
the test sentences are other words, too.
"""

import random

from ftcluster_train.engine.data.synthetic_pairs import FORMS, PARTS, PLACES, TRAINING_SHARE

SHOTS, TESTED = 8, 25  # rows of each class
ITERATIONS = 3  # SetFit's num_iterations: pairs of each kind for each row
Row = dict[str, str]


def rows_of(seed: int) -> tuple[list[Row], list[Row]]:
    """Return the training rows and the test rows; the same seed always gives the same rows."""
    draw = random.Random(seed)
    sets: list[list[Row]] = []
    for word, count in ((0, SHOTS), (1, TESTED)):
        rows = []
        for place in PLACES * count:
            parts = []
            for part in PARTS:
                border = round(len(part) * TRAINING_SHARE)
                meanings = part[:border] if word == 0 else part[border:]
                parts.append(place[word] if part is PLACES else draw.choice(meanings)[word])
            rows.append({"text": draw.choice(FORMS).format(*parts), "label": place[0]})
        draw.shuffle(rows)
        sets.append(rows)
    return sets[0], sets[1]
