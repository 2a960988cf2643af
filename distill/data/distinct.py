"""Texts that are not too like one another, found exactly and without comparing every pair."""

import re
import unicodedata
from collections import Counter, defaultdict

WORDS = 3
"""Words of a shingle."""
Shingle = tuple[str, ...]


def shingles(text: str) -> frozenset[Shingle]:
    """Runs of `WORDS` words of the text, case, accents' spelling and punctuation put aside.

    A shorter text is one shingle. So is text without spaces: of that only repetitions are found.
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    last = max(len(words) - WORDS, 0)
    return frozenset(tuple(words[n : n + WORDS]) for n in range(last + 1))


class Distinct:
    """Takes a text when its likeness to every text taken before is below `likeness`.

    Likeness of two texts: shingles in both / shingles in either (Jaccard; Broder 1997, "On the
    resemblance and containment of documents").
    """

    def __init__(self, likeness: float):
        self._likeness = likeness
        self._holders: dict[Shingle, list[int]] = defaultdict(list)
        self._sizes: list[int] = []

    def take(self, text: str) -> bool:
        """Whether the text is unlike all others; if so it is now one of them."""
        found = shingles(text)
        shared = Counter(number for one in found for number in self._holders.get(one, ()))
        for number, both in shared.items():
            if both >= self._likeness * (len(found) + self._sizes[number] - both):
                return False
        for one in found:
            self._holders[one].append(len(self._sizes))
        self._sizes.append(len(found))
        return True
