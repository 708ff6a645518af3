"""WordPiece: the tokens of a text by BERT's uncased vocabulary (Devlin et al., "BERT", 2019)."""

import unicodedata

import numpy as np


def tokens(texts: list[str], length: int, pieces: list[str]) -> np.ndarray:
    """Returns the rows of pieces [N, length] int32 of texts, cut there, with 0 after the end."""
    rows = {piece: row for row, piece in enumerate(pieces)}
    numbers = np.zeros([len(texts), length], np.int32)
    for number, text in zip(numbers, texts, strict=True):
        found = [row for word in _words(text) for row in _rows(word, rows)][: length - 2]
        number[: len(found) + 2] = rows["[CLS]"], *found, rows["[SEP]"]
    return numbers


def _words(text):
    """Returns lower-case words without accents, and each punctuation mark as a word."""
    apart = ""
    for letter in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(letter)
        if kind != "Mn":
            is_mark = kind.startswith("P") or (kind.startswith("S") and letter.isascii())
            apart += f" {letter} " if is_mark else letter
    return apart.split()


def _rows(word, rows):
    """Returns the rows of the longest pieces of a word from its start, or of [UNK]."""
    found, prefix = [], ""
    while word:
        for end in range(len(word), 0, -1):
            if (row := rows.get(prefix + word[:end])) is not None:
                break
        else:
            return [rows["[UNK]"]]
        found, prefix, word = [*found, row], "##", word[end:]
    return found
