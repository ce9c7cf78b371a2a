"""The dashboard: pages for people and a JSON API for programs, served by the Switchboard beside its tools.

To add a page, say `thing` (nothing central has to be edited; the navigation shows it once its module exists):

- `reading/thing.py`: functions of a `Tx` that return frozen dataclasses; every query bounded and by an index.
- `changing/thing.py`: functions of a `Tx` that change and audit. Backfill: `await here.call("backfill.pause", ..)`.
- `pages/thing.py`: `router = pages_router()`; routes `async def f(here: Here, ..) -> Response` that end with
  `await here.page("thing/list.html", "thing", ..)`, or after a POST with `await here.go("/thing", "What was done.")`.
  Forms: `form = await here.form()`; on BadInput the page again, with `form=form.refused(error)` and status 422.
  Filters: `choosing.py`. Lists: `paging.py` (Order, paged) and the macro `parts.pager`.
- `pages/templates/thing/*.html`: extend base.html, import parts.html (fields, buttons with CSRF, badges, empty states).
  Text of other people goes through `| plain`. A region with `id` and `data-live="topic"` renews itself when that topic
  of `live/looks.py` changes. Charts: `charts.py`, shown by `| chart`. Style: app.css, no inline style or script.
- `api/thing.py`: `router = api_router("thing")`, the same through the same functions; typed answers make the OpenAPI.
  Each route has `@permits(Permission.READ, ..)` below its `@router` line; a test fails on one without.
- tests: `tests/dashboard/test_thing.py` (fixture `site`), `tests/browser/test_thing.py` (fixture `window`).

What is sensitive calls `require_proof` (`changing/passphrase.py`), page and API alike, and stands in the table of
`security/proof.py`. The gate (`security/gate.py`) asks every request for a login and every change for its CSRF token: a
page need not.
"""
