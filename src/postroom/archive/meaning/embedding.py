"""Texts as vectors: the mean of the vectors of their tokens, with the static embeddings that the package `wordllama`
holds.

Only the package's files are read, so that none of its code runs and nothing is ever downloaded. Of the extra `meaning`:
import this where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from postroom.domain.errors import Fatal

DIMENSIONS = 256
LONGEST_TEXT = 600
"""Characters of a message that count: its beginning says what it is about, and the mean of much text says little."""
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_TENSOR = "embedding.weight"
_RECIPE = 1
"""Of what is made of a message; raise it when that changes, and all vectors are made anew."""


def model_version() -> str:
    """What vectors depend on; those of another version are of no use."""
    return f"wordllama {version('wordllama')} l2_supercat_256, recipe {_RECIPE}"


class TextEmbedder:
    """Safe to use from several threads."""

    def __init__(self, weights: Any, tokenizer: Any) -> None:
        self._weights = weights
        self._tokenizer = tokenizer

    def embed(self, texts: Sequence[str]) -> Any:
        """A row of length 1 for each text; zeros for a text without a token."""
        found: Any = np.zeros((len(texts), DIMENSIONS), np.float32)
        readable = [text.encode("utf-8", "replace").decode() for text in texts]
        for row, tokens in zip(
            found, self._tokenizer.encode_batch_fast(readable, add_special_tokens=False), strict=True
        ):
            if ids := tokens.ids:
                self._weights[ids].mean(axis=0, out=row)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, lengths, out=found, where=lengths > 0)


@lru_cache(1)
def text_embedder() -> TextEmbedder:
    """Takes half a second, once in a process, and 35 MB."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one core is enough, and others have work too
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    weights, tokenizer = (_file(name) for name in (_WEIGHTS, _TOKENIZER))
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.no_padding()
    encoder.no_truncation()
    return TextEmbedder(load_file(weights)[_TENSOR].astype(np.float32), encoder)


def _file(name: str) -> Path:
    found = find_spec("wordllama")
    for folder in (found.submodule_search_locations or []) if found else []:
        if (path := Path(folder) / name).is_file():
            return path
    raise Fatal(f"The package wordllama lacks {name}; install it again: pip install --force-reinstall wordllama")


def text_to_embed(subject: str, body: str) -> str:
    """The subject and the beginning of the body, without lines that quote other mail."""
    own = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith(">"))
    return f"{subject}\n{own.strip() or body}"[:LONGEST_TEXT]
