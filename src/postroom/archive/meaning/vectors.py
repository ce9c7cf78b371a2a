"""Texts as vectors, by the static embeddings that the package `wordllama` holds (the mean of the vectors of their
tokens); the vectors of an account's mail, one file beside its shards; and making those that are lacking, newest mail
first.

Only the package's files are read, so that none of its code runs and nothing is ever downloaded. A record of the file
has the message's row and four bytes of its hash, and no word of it. Records are appended by one writer at a time; a
torn last one is cut off, so a kill loses what was not written and nothing else. A file that another version of the
model made is begun anew. Of the extra `meaning`: import this where it is used.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from postroom.archive.backend import MailReader
from postroom.archive.messages import TextRow, folder_of
from postroom.domain.errors import Fatal, Retryable

DIMENSIONS = 256
LONGEST_TEXT = 600
"""Characters of a message that count: its beginning says what it is about, and the mean of much text says little."""
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_TENSOR = "embedding.weight"
_NUMBERS = {"F16": np.float16, "F32": np.float32}
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
                self._weights[ids].astype(np.float32).mean(axis=0, out=row)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, lengths, out=found, where=lengths > 0)


@lru_cache(1)
def text_embedder() -> TextEmbedder:
    """Takes a quarter of a second, once in a process, and 15 MB; the weights are read from their file as they are
    needed, 16 MB at most, which processes share."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one core is enough, and others have work too
    from tokenizers import Tokenizer

    weights, tokenizer = (_file(name) for name in (_WEIGHTS, _TOKENIZER))
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.no_padding()
    encoder.no_truncation()
    encoder.model._resize_cache(0)  # it has no words but whole texts, seldom met twice: 10,000 of them take 75 MB
    return TextEmbedder(_mapped(weights), encoder)


def _mapped(weights: Path) -> Any:
    """The tensor of a file in the format safetensors: the length of its head, which says in JSON where each begins."""
    with weights.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        tensor = json.loads(file.read(size))[_TENSOR]
        begin = 8 + size + tensor["data_offsets"][0]
        return np.asarray(np.memmap(file, _NUMBERS[tensor["dtype"]], "r", begin, tuple(tensor["shape"])))


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


VECTORS_FILE = "vectors"
_LOCK = "vectors.lock"
_HEAD = 512
_RECORD = np.dtype(
    [
        ("row_id", "<i8"),
        ("year", "<u2"),
        ("part", "<u2"),
        ("check", "<u4"),
        ("scale", "<f4"),
        ("unused", "<u4"),
        ("vector", "i1", DIMENSIONS),
    ]
)
_COMPARED_AT_ONCE = 1_024
"""Records that are compared at a time: so many stay in the processor's cache, which makes it three times as fast."""


def vectors_path(root: Path, account: str) -> Path:
    return folder_of(root, account) / VECTORS_FILE


def _head() -> bytes:
    known = {"format": 1, "model": model_version(), "dimensions": DIMENSIONS, "record": _RECORD.itemsize}
    return json.dumps(known).encode().ljust(_HEAD - 1) + b"\n"


class AccountVectors:
    """The vectors that are there now, read-only, from the memory that the system shares among all who read them."""

    def __init__(self, records: Any) -> None:
        self._records = records

    @classmethod
    def open(cls, root: Path, account: str) -> AccountVectors:
        """Without any, if there is no file, or one of another version of the model."""
        try:
            with vectors_path(root, account).open("rb") as file:
                count = (os.fstat(file.fileno()).st_size - _HEAD) // _RECORD.itemsize
                if count > 0 and file.read(_HEAD) == _head():
                    return cls(np.asarray(np.memmap(file, _RECORD, "r", _HEAD, (count,))))
        except FileNotFoundError:
            pass
        return cls(np.zeros(0, _RECORD))

    def __len__(self) -> int:
        return len(self._records)

    def rows(self) -> dict[tuple[int, int], tuple[int, int]]:
        """The check and the number of each record, by row id and part."""
        fields = (self._records[name].tolist() for name in ("row_id", "part", "check"))
        return {(row_id, part): (check, at) for at, (row_id, part, check) in enumerate(zip(*fields, strict=True))}

    def vector_of(self, row_id: int, check: int) -> Any | None:
        """None if it is not made yet."""
        found = np.flatnonzero((self._records["row_id"] == row_id) & (self._records["check"] == check))
        if not len(found):
            return None
        record = self._records[found[0]]
        return record["vector"].astype(np.float32) * record["scale"]

    def nearest(self, vector: Any, most: int) -> list[tuple[float, TextRow]]:
        """How alike they are, 1 at most, and whose they are; the most alike first."""
        scores: Any = np.empty(len(self._records), np.float32)
        for start in range(0, len(scores), _COMPARED_AT_ONCE):
            part = self._records[start : start + _COMPARED_AT_ONCE]
            scores[start : start + _COMPARED_AT_ONCE] = part["vector"].astype(np.float32) @ vector * part["scale"]
        best = np.argpartition(-scores, most - 1)[:most] if most < len(scores) else np.arange(len(scores))
        best = best[np.argsort(-scores[best], kind="stable")]
        found = self._records[best]
        fields = (found[name].tolist() for name in ("year", "part", "row_id", "check"))
        return [
            (score, TextRow(*row)) for score, row in zip(scores[best].tolist(), zip(*fields, strict=True), strict=True)
        ]


class VectorFolder:
    """The vectors of all accounts, for one who searches often: a file is mapped again only after it has changed. Safe
    to use from several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, tuple[tuple[int, int], AccountVectors]] = {}

    def of(self, account: str) -> AccountVectors:
        stamp = _stamp(vectors_path(self._root, account))
        known = self._open.get(account)
        if known is None or known[0] != stamp:
            known = self._open[account] = (stamp, AccountVectors.open(self._root, account))
        return known[1]


def _stamp(path: Path) -> tuple[int, int]:
    """What is written into a file that stays as long shows through the mapping."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size


class VectorWriter:
    """Adds vectors to an account's file, alone."""

    def __init__(self, root: Path, account: str, file: int) -> None:
        there = AccountVectors.open(root, account)
        self._file = file
        self._known = there.rows()
        self._count = len(there)

    def lacks(self, row: TextRow) -> bool:
        """Also where the message has other bytes than when its vector was made."""
        return self._known.get((row.row_id, row.part), (None,))[0] != row.check

    def write(self, rows: Sequence[TextRow], vectors: Any) -> None:
        records = _records(rows, vectors)
        for row, record in zip(rows, records, strict=True):
            known = self._known.get((row.row_id, row.part))
            at = self._count if known is None else known[1]
            os.pwrite(self._file, record.tobytes(), _HEAD + at * _RECORD.itemsize)
            self._known[row.row_id, row.part] = (row.check, at)
            self._count = max(self._count, at + 1)


def _records(rows: Sequence[TextRow], vectors: Any) -> Any:
    """As whole numbers of a byte, each vector by its own largest, and what makes its length 1 again."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    whole = np.rint(np.divide(vectors * 127, largest, out=np.zeros_like(vectors), where=largest > 0))
    lengths = np.linalg.norm(whole, axis=1)
    records: Any = np.zeros(len(rows), _RECORD)
    for name in ("row_id", "year", "part", "check"):
        records[name] = [getattr(row, name) for row in rows]
    records["vector"] = whole
    records["scale"] = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return records


@contextmanager
def writing_vectors(root: Path, account: str, *, anew: bool = False) -> Iterator[VectorWriter]:
    """Raises Retryable while another process writes to the file."""
    path = vectors_path(root, account)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(path.with_name(_LOCK)):
        if anew or not _is_current(path):
            _begin(path)
        file = os.open(path, os.O_RDWR)
        try:
            whole = (os.fstat(file).st_size - _HEAD) // _RECORD.itemsize
            os.ftruncate(file, _HEAD + whole * _RECORD.itemsize)
            yield VectorWriter(root, account, file)
        finally:
            os.close(file)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Retryable(f"Another process is making the vectors in {path.parent}.") from None
    finally:
        os.close(file)


def _is_current(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD) == _head()
    except FileNotFoundError:
        return False


def _begin(path: Path) -> None:
    """As another file: to shorten one that a search is reading would end that process."""
    aside = path.with_name(f"{VECTORS_FILE}.new")
    aside.touch(0o600)
    aside.write_bytes(_head())
    os.replace(aside, path)


def remove_vectors(root: Path, kept: Sequence[str]) -> None:
    """Remove the vectors of all accounts but these."""
    wanted = {vectors_path(root, account) for account in kept}
    for path in root.glob(f"*/{VECTORS_FILE}"):
        if path not in wanted:
            path.unlink()
            path.with_name(_LOCK).unlink(missing_ok=True)


_MADE_AT_ONCE = 200
_LONGEST_BODY = 8 * LONGEST_TEXT
"""Quoted lines are left out, so more is read than counts."""


@dataclass(frozen=True, slots=True)
class VectorState:
    messages: int
    vectors: int
    """Made by this version of the model, and of messages as they are now."""

    @property
    def waiting(self) -> int:
        return self.messages - self.vectors


def make_vectors(
    reader: MailReader,
    root: Path,
    email: str,
    *,
    anew: bool = False,
    show: Callable[[int], None] = lambda made: None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Make all that are lacking, or as many as there is time for; returns how many were made. `show` gets the number
    made since its last call."""
    made = 0
    with writing_vectors(root, email, anew=anew) as writer:
        waiting: list[TextRow] = []
        for portion in reader.text_rows(email):
            waiting += [row for row in portion if writer.lacks(row)]
            while len(waiting) >= _MADE_AT_ONCE and not is_over():
                made += _make(reader, writer, email, waiting[:_MADE_AT_ONCE], show)
                del waiting[:_MADE_AT_ONCE]
            if is_over():
                return made
        if waiting:
            made += _make(reader, writer, email, waiting, show)
    return made


def _make(
    reader: MailReader, writer: VectorWriter, email: str, rows: list[TextRow], show: Callable[[int], None]
) -> int:
    texts = reader.texts(email, rows, _LONGEST_BODY)
    writer.write(rows, text_embedder().embed([text_to_embed(*text) for text in texts]))
    show(len(rows))
    return len(rows)


def vector_state(reader: MailReader, root: Path, email: str) -> VectorState:
    known = AccountVectors.open(root, email).rows()
    messages = vectors = 0
    for portion in reader.text_rows(email):
        messages += len(portion)
        vectors += sum(known.get((row.row_id, row.part), (None,))[0] == row.check for row in portion)
    return VectorState(messages, vectors)
