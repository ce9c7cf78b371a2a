"""The dashboard: pages for people and a JSON API for programs, served by the Switchboard beside its tools.

To add a feature, say `thing`:

- `thing.py`, or a package `thing/` with `queries.py` and `routes.py` when it is large. Queries are functions of a
  `Tx` that return frozen dataclasses; each is bounded and served by an index.
- Page and API of a thing stand side by side and share one function for each reading: the API route returns its
  result, the page calls the same function and renders it.
- A change is a tool (`contract/`, CONTRIBUTING.md says how to add one): `await here.call(TOOL, arguments)`, in page and
  API alike. The tool's arguments can be the body of the API route.
- Pages: `pages = pages_router()`; routes are `async def f(here: Here, ..) -> Response` and end with
  `await here.page("thing/list.html", "thing", ..)`, or after a POST with `await here.go("/thing", "Message.")`.
  Forms: `form = await here.form()`; on BadInput show the page again with `form=form.refused(error)` and status 422.
- API: `api = api_router("thing")`; typed replies make the OpenAPI description. Each route has
  `@permits(Permission.READ, ..)` below its `@api` line; a test fails on one without. Ids in paths are `Id`.
- Lists: a `ListQuery` (`paging.py`) has the filters of page and API, read as `Annotated[ThingsQuery, Query()]`;
  `SortOrder`, `row_before` and `paged` fetch a page; the macro `parts.pager` links to the next.
- `templates/thing/*.html` extend base.html and import parts.html (fields, buttons with CSRF, badges, empty states).
  Text of other people goes through `| plain`. A region with `id` and `data-live="topic"` updates itself when that
  topic of `live_updates.py` changes. Charts: `display/charts.py`, shown by `| chart`. Style: app.css, no inline style
  or script.
- Add its routers to `ROUTERS` in `server.py` and its section to `display/rendering.py`.
- tests: `tests/dashboard/test_thing_page.py` (fixture `site`), `tests/browser/test_thing.py` (fixture `window`).

A sensitive change is listed in `SensitiveChange` (`domain/roles.py`); its tool calls `require_proof`, and the page
calls the tool with `call_with_proof` (`security/login.py`), which asks for the passphrase. The gate
(`security/gate.py`) checks login and CSRF token of every request, so a page need not.
"""
