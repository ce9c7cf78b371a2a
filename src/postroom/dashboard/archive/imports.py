"""Files to import, dropped on the archive page or chosen there, and the imports that are under way.

An upload is streamed to disk as it arrives, bounded, and never whole in memory. The gate leaves the body of
`gate.STREAMED` to this module. Fields come before files in the form: the CSRF token is checked before a byte of a file
is written. An import runs in the process that owns the archive (`app/archive_runner.py`), in the order in which files
came.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from postroom.app.archive_tasks import UNFINISHED, uploads_folder
from postroom.contract import steering as contract
from postroom.contract.tool import Id
from postroom.dashboard.archive.routes import render_archive
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.display.formatting import size as size_in_words
from postroom.dashboard.forms import Form
from postroom.dashboard.security.gate import CSRF_FIELD, CSRF_HEADER, STREAMED, ForgedRequest, RequestTooLarge
from postroom.dashboard.security.sessions import Visitor, is_csrf_token
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.ids import new_id, normal_email
from postroom.domain.roles import Permission

FILE_FIELD = "files"
MOST_FILES = 50
_LONGEST_FIELD = 10_000
_MOST_FIELDS = 20
_AT_ONCE = 1 << 20
_LEFT_FREE = 200_000_000
"""Of the disk: the archive needs room for the same mail."""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    name: str
    """As it was called where it came from."""
    path: Path
    size: int


@dataclass(slots=True)
class Upload:
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files: list[UploadedFile] = field(default_factory=list)

    @property
    def form(self) -> Form:
        return Form(self.fields)

    def discard(self) -> None:
        for file in self.files:
            file.path.unlink(missing_ok=True)


async def receive_upload(request: Request, visitor: Visitor, home: Path, most: int) -> Upload:
    """The form with its files on disk. If it is refused or breaks off, nothing of it stays."""
    _check_length(request, home, most)
    folder = uploads_folder(home)
    folder.mkdir(mode=0o700, exist_ok=True)
    upload = Upload()
    parts = _Parts(upload, folder, most, visitor.secret, request.headers.get(CSRF_HEADER))
    try:
        with _errors_mapped():
            parser = _parser(request, parts)
            async for piece in _pieces(request):
                await asyncio.to_thread(parser.write, piece)
            parser.finalize()
    except BaseException:
        parts.close()
        upload.discard()
        raise
    parts.require_token()
    return upload


def _check_length(request: Request, home: Path, most: int) -> None:
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise BadInput("body", "has no length")
    if int(length) > most:
        raise RequestTooLarge(most)
    if int(length) > (free := shutil.disk_usage(home).free - _LEFT_FREE):
        problem = f"need {size_in_words(int(length))}, and {size_in_words(max(free, 0))} of the disk are free"
        raise BadInput(FILE_FIELD, problem)


def _parser(request: Request, parts: _Parts) -> MultipartParser:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadInput("body", "is not a form with files")
    return MultipartParser(
        boundary,
        {
            "on_part_begin": parts.begin,
            "on_header_field": parts.header_field,
            "on_header_value": parts.header_value,
            "on_header_end": parts.header_end,
            "on_headers_finished": parts.headers_finished,
            "on_part_data": parts.data,
            "on_part_end": parts.end,
        },
    )


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces that are worth a turn of another thread."""
    gathered = bytearray()
    async for piece in request.stream():
        gathered += piece
        if len(gathered) >= _AT_ONCE:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


@contextmanager
def _errors_mapped() -> Iterator[None]:
    try:
        yield
    except FormParserError:
        raise BadInput("body", "is not a valid form") from None
    except ClientDisconnect:
        raise Retryable("The upload was interrupted.") from None
    except OSError as error:
        raise BadInput(FILE_FIELD, f"could not be written to disk: {error.strerror}") from error


class _Parts:
    """Takes the parts of a form one after the other."""

    def __init__(self, upload: Upload, folder: Path, most: int, secret: str, token: str | None) -> None:
        self._upload = upload
        self._folder = folder
        self._most = most
        self._secret = secret
        self._token = token
        self._header = (bytearray(), bytearray())
        self._name = self._filename = ""
        self._value = bytearray()
        self._file: BinaryIO | None = None
        self._received = 0

    def require_token(self) -> None:
        offered = self._token or next(iter(self._upload.fields.get(CSRF_FIELD, ())), None)
        if offered is None or not is_csrf_token(offered, self._secret):
            raise ForgedRequest()

    def begin(self) -> None:
        self._header = (bytearray(), bytearray())
        self._name = self._filename = ""
        self._value = bytearray()

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(value))
            self._name = _text(options.get(b"name", b""))
            self._filename = _text(options.get(b"filename", b""))
        self._header = (bytearray(), bytearray())

    def headers_finished(self) -> None:
        if self._name != FILE_FIELD or not self._filename:
            return  # a field, or a choice of files that was left empty
        self.require_token()
        if len(self._upload.files) >= MOST_FILES:
            raise BadInput(FILE_FIELD, f"are more than {MOST_FILES}, the most at once")
        path = self._folder / f"{new_id()}{UNFINISHED}"
        self._file = path.open("xb")
        self._upload.files.append(UploadedFile(self._filename, path, 0))

    def data(self, data: bytes, start: int, end: int) -> None:
        self._received += end - start
        if self._received > self._most:
            raise RequestTooLarge(self._most)
        if self._file is not None:
            self._file.write(memoryview(data)[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > _LONGEST_FIELD:
            raise BadInput(self._name[:50] or "body", "is too long")

    def end(self) -> None:
        if self._file is not None:
            size = self._file.tell()
            self._file.close()
            self._file = None
            last = self._upload.files[-1]
            self._upload.files[-1] = UploadedFile(last.name, last.path, size)
        elif self._name != FILE_FIELD:
            fields = self._upload.fields
            if len(fields) >= _MOST_FIELDS:
                raise BadInput("body", "has too many fields")
            fields[self._name] = (*fields.get(self._name, ()), _text(bytes(self._value)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _text(value: bytes) -> str:
    """Text that can be stored and shown."""
    return value.decode("utf-8", "replace").replace("\0", " ")[:_LONGEST_FIELD]


pages = pages_router()
api = api_router("archive")

ImportChange = Literal["stop", "resume", "forget"]


@pages.get(STREAMED)
async def upload_page(here: Here) -> Response:
    """After files were refused, a reload leads back."""
    return await here.go("/archive#imports")


@pages.post(STREAMED)
async def upload_files(here: Here) -> Response:
    """Take files to import. Those before one that is refused are imported."""
    most, home = here.app.settings.dashboard.upload_bytes, here.app.settings.home
    try:
        upload = await receive_upload(here.request, here.visitor, home, most)
    except BadInput as error:
        return await render_archive(here, form=Form().refused(_about_files(error)), status=422)
    try:
        started = await _started(here, upload)
    except BadInput as error:
        return await render_archive(here, form=upload.form.refused(error), status=422)
    finally:
        upload.discard()  # what is not an import now
    return await here.go("/archive#imports", f"Importing {plural(started, 'file')}.")


async def _started(here: Here, upload: Upload) -> int:
    if not upload.files:
        raise BadInput(FILE_FIELD, "choose at least one")
    account = normal_email(upload.form["account"], "account")
    for file in upload.files:
        await here.call(
            contract.START_IMPORT, {"upload": file.path.stem, "name": file.name[:255], "endpoint_identity": account}
        )
    return len(upload.files)


def _about_files(error: BadInput) -> BadInput:
    if error.field == "body":
        error.rename(FILE_FIELD)
    return error


@api.get("/imports")
@permits(Permission.READ)
async def show_imports(here: Here) -> contract.ImportsReply:
    """Imports of files, newest first, with how far each is."""
    return await here.call(contract.LIST_IMPORTS, {})


_CHANGES = {"stop": contract.STOP_IMPORT, "resume": contract.RESUME_IMPORT, "forget": contract.FORGET_IMPORT}


@pages.post("/archive/imports/{import_id}/{change}")
async def change_import_page(here: Here, import_id: Id, change: ImportChange) -> Response:
    await here.call(_CHANGES[change], {"import_id": import_id})
    return await here.go("/archive#imports")


@api.post("/imports/{import_id}/{change}")
@permits(Permission.ACCOUNTS)
async def change_import(here: Here, import_id: Id, change: ImportChange) -> contract.ImportReply:
    """Stop an import, go on with one that was stopped or has failed, or remove one that is over from the list."""
    return await here.call(_CHANGES[change], {"import_id": import_id})
