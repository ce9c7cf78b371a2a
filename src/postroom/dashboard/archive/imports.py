"""Files to import, dropped on the archive page or chosen there; and the imports that are under way.

An import runs in the process that owns the archive (`app/archive_runner.py`), in the order in which files came.
"""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from postroom.contract import imports as contract
from postroom.contract.fields import Id
from postroom.dashboard.archive.routes import render_archive
from postroom.dashboard.archive.uploads import FILE_FIELD, Upload, receive_upload
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import Form
from postroom.dashboard.security.gate import STREAMED
from postroom.domain.errors import BadInput
from postroom.domain.ids import normal_email
from postroom.domain.roles import Permission

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
            contract.START, {"upload": file.path.stem, "name": file.name[:255], "endpoint_identity": account}
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
    return await here.call(contract.LIST, {})


_CHANGES = {"stop": contract.STOP, "resume": contract.RESUME, "forget": contract.FORGET}


@pages.post("/archive/imports/{import_id}/{change}")
async def change_import_page(here: Here, import_id: Id, change: ImportChange) -> Response:
    await here.call(_CHANGES[change], {"import_id": import_id})
    return await here.go("/archive#imports")


@api.post("/imports/{import_id}/{change}")
@permits(Permission.ACCOUNTS)
async def change_import(here: Here, import_id: Id, change: ImportChange) -> contract.ImportReply:
    """Stop an import, go on with one that was stopped or has failed, or remove one that is over from the list."""
    return await here.call(_CHANGES[change], {"import_id": import_id})
