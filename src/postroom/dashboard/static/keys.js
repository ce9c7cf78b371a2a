// The keyboard, on every page, and rows that can be selected: mail, approvals, review. Every key presses a button or a
// link that the page has anyway, named by its aria-keyshortcuts; everything works without this script too.
//
// form[data-rows] holds [data-row] elements, each with a checkbox and, if it can be opened, a [data-open] link.
// A [data-all] box selects the rows of its [data-group], or all. [data-selected] says how many are selected.

const formNow = () => document.querySelector("form[data-rows]");
const rowsOf = (part) => [...(part?.querySelectorAll("[data-row]") ?? [])];
const boxOf = (row) => row.querySelector("input[type=checkbox]");
const nameOf = (row) => row.dataset.row || row.id;
const selectedIn = (part) => rowsOf(part).filter((row) => boxOf(row).checked);
const currentRow = () => document.activeElement?.closest("[data-row]") ?? null;
const scopeOf = (allBox) => allBox.closest("[data-group]") ?? allBox.form;

// --- selecting -------------------------------------------------------------------------------------------------------

// A box for several rows is ticked exactly when all of them are, so that it never adds one that is not.
function settle(form) {
  for (const part of form.querySelectorAll("[data-scripted][hidden]")) part.hidden = false;
  for (const allBox of form.querySelectorAll("[data-all]")) {
    const rows = rowsOf(scopeOf(allBox));
    const count = selectedIn(scopeOf(allBox)).length;
    allBox.checked = rows.length > 0 && count === rows.length;
    allBox.indeterminate = count > 0 && count < rows.length;
  }
  const place = form.querySelector("[data-selected]");
  const count = selectedIn(form).length;
  const said = count > 0 ? `${count} selected` : "";
  if (place && place.textContent !== said) place.textContent = said;
}

let lastChosen = null;

// With Shift, all rows from the one chosen last to this one.
function choose(row, isRange) {
  const form = row.closest("form[data-rows]");
  const rows = rowsOf(form);
  const [from, to] = [rows.indexOf(lastChosen), rows.indexOf(row)].sort((a, b) => a - b);
  if (isRange && from >= 0) for (const each of rows.slice(from, to + 1)) boxOf(each).checked = boxOf(row).checked;
  lastChosen = row;
  settle(form);
}

document.addEventListener("click", (event) => {
  const row = event.target.closest?.("[data-row]");
  if (row && event.target === boxOf(row)) choose(row, event.shiftKey);
  // A menu closes when something else is used.
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

document.addEventListener("change", (event) => {
  const form = event.target.closest?.("form[data-rows]");
  if (!form || event.target.type !== "checkbox") return;
  if ("all" in event.target.dataset) {
    for (const row of rowsOf(scopeOf(event.target))) boxOf(row).checked = event.target.checked;
  }
  settle(form);
});

// --- moving ----------------------------------------------------------------------------------------------------------

function focusOn(row) {
  if (!row) return;
  (row.querySelector("[data-open]") ?? row).focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function move(form, step) {
  const rows = rowsOf(form);
  const place = rows.indexOf(currentRow());
  focusOn(rows[place < 0 ? 0 : Math.min(Math.max(place + step, 0), rows.length - 1)]);
}

function toggle(isRange) {
  const row = currentRow();
  if (!row) return;
  boxOf(row).checked = !boxOf(row).checked;
  choose(row, isRange);
}

// After a change the page is loaded again: go on at the row that was in use, or at the next one that is left; after an
// undo, at the row that was in use before.
const PLACE = `rows:${location.pathname}`;

const BEFORE = `before:${location.pathname}`;

document.addEventListener("submit", (event) => {
  // A button above the rows is about those that are selected.
  const row = currentRow() ?? (event.target.matches("form[data-rows]") ? selectedIn(event.target)[0] : null);
  if (!row || event.defaultPrevented || event.target.method !== "post") return;
  const rows = rowsOf(row.closest("form[data-rows]"));
  const names = JSON.stringify(rows.slice(rows.indexOf(row)).map(nameOf));
  const isUndo = !event.target.matches("form[data-rows]");
  sessionStorage.setItem(PLACE, (isUndo && sessionStorage.getItem(BEFORE)) || names);
  sessionStorage.setItem(BEFORE, names);
});

function resume(form) {
  const names = JSON.parse(sessionStorage.getItem(PLACE) ?? "[]");
  sessionStorage.removeItem(PLACE);
  const named = location.hash.startsWith("#q-") ? document.getElementById(location.hash.slice(1)) : null;
  named?.querySelector("details")?.setAttribute("open", "");
  const rows = rowsOf(form);
  const left = new Map(rows.map((row) => [nameOf(row), row]));
  if (named) focusOn(named);
  else if (names.length > 0) focusOn(left.get(names.find((name) => left.has(name))) ?? rows.at(-1));
}

// --- keys ------------------------------------------------------------------------------------------------------------

const isWriting = (target) =>
  target.isContentEditable ||
  (target.matches?.("input:not([type=checkbox]):not([type=radio]), textarea, select") ?? false);
const withKey = (key) => document.querySelector(`main [aria-keyshortcuts~="${CSS.escape(key)}"]`);

// A key is about the selected rows, or about the row with the focus; without either it does nothing.
function press(target) {
  const form = target.closest("form[data-rows]");
  if (form && target.matches("button, summary") && selectedIn(form).length === 0) {
    if (!currentRow()) return;
    boxOf(currentRow()).checked = true;
    settle(form);
  }
  if (target.matches("summary")) {
    target.parentElement.open = true;
    target.parentElement.querySelector("input:not([type=hidden]), select")?.focus();
  } else if (target.matches("button, a")) {
    target.click();
  } else {
    target.focus();
    target.select?.();
  }
}

// `g` and a second key soon after it lead to a page; so does `/` where a page has no search of its own.
const PAGES = {
  "/": "/mail#f-query",
  "g i": "/mail",
  "g a": "/approvals",
  "g r": "/review",
  "g q": "/queue",
};
const GO_WITHIN_MS = 1500;
let goSince = -Infinity;

function go(key) {
  if (!Object.hasOwn(PAGES, key)) return false;
  location.assign(PAGES[key]);
  return true;
}

// The page of shortcuts has the sheet as a template.
const HELP = "/keyboard";

async function openHelp() {
  const known = document.getElementById("keys");
  if (known) return known.showModal();
  try {
    const answer = await fetch(HELP, { headers: { "X-Live": "1", Accept: "text/html" }, redirect: "error" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.body.append(document.importNode(page.getElementById("key-dialog").content, true));
    document.getElementById("keys").showModal();
  } catch {
    location.assign(HELP); // which says what is wrong
  }
}

function handled(event) {
  const { key, timeStamp } = event;
  const isSecond = timeStamp - goSince < GO_WITHIN_MS;
  goSince = -Infinity;
  if (isSecond) return go(`g ${key}`);
  const form = formNow();
  const target = withKey(key) ?? (key === "u" ? withKey("z") : null);
  if (target) {
    if (!event.repeat) press(target);
  } else if (key === "g") goSince = timeStamp;
  else if (key === "?") openHelp();
  else if (form && (key === "j" || key === "k")) move(form, key === "j" ? 1 : -1);
  else if (form && key.toLowerCase() === "x") toggle(event.shiftKey);
  else return go(key);
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target)) return;
  if (event.key.length > 1 || document.querySelector("dialog[open]")) return;
  if (handled(event)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  if (!event.target.closest?.("[data-help]") || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openHelp();
});

function start() {
  document.documentElement.dataset.keys = "yes";
  const form = formNow();
  if (form) settle(form);
  resume(form);
  if (location.hash === "#f-query") document.getElementById("f-query")?.focus();
  const main = document.getElementById("main");
  new MutationObserver(() => formNow() && settle(formNow())).observe(main, { childList: true, subtree: true });
}

start();
