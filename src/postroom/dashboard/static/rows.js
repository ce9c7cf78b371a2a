// Rows to decide on, in a form[data-rows]: j and k move, x selects, and a button has the key of its aria-keyshortcuts.
// Boxes and buttons work without this too: a [data-all] box carries the ids of its rows as its value.

const rowsOf = (part) => [...part.querySelectorAll("[data-row]")];
const boxOf = (row) => row.querySelector(":scope > input[type=checkbox]");
const scopeOf = (allBox) => allBox.closest("[data-group]") ?? allBox.form;
const formNow = () => document.querySelector("form[data-rows]");
const currentRow = () => document.activeElement?.closest("[data-row]") ?? null;
const selectedIn = (part) => rowsOf(part).filter((row) => boxOf(row).checked);

// A box for several rows is ticked exactly when all of them are, so that it never adds one that is not.
function settle(form) {
  for (const allBox of form.querySelectorAll("[data-all]")) {
    const rows = rowsOf(scopeOf(allBox));
    const count = selectedIn(scopeOf(allBox)).length;
    allBox.checked = rows.length > 0 && count === rows.length;
    allBox.indeterminate = count > 0 && count < rows.length;
  }
  const said = form.querySelector("[data-selected]");
  const count = selectedIn(form).length;
  if (said) said.textContent = count > 0 ? `${count} selected` : "";
}

let lastClicked = null;

function selectUpTo(row, checked) {
  const rows = rowsOf(row.closest("form[data-rows]"));
  const [from, to] = [rows.indexOf(lastClicked), rows.indexOf(row)].sort((a, b) => a - b);
  if (from >= 0) for (const each of rows.slice(from, to + 1)) boxOf(each).checked = checked;
}

document.addEventListener("click", (event) => {
  const row = event.target.closest?.("[data-row]");
  if (!row || event.target !== boxOf(row)) return;
  if (event.shiftKey && lastClicked) selectUpTo(row, event.target.checked);
  lastClicked = row;
});

document.addEventListener("change", (event) => {
  const form = event.target.closest?.("form[data-rows]");
  if (!form || event.target.type !== "checkbox") return;
  if ("all" in event.target.dataset)
    for (const row of rowsOf(scopeOf(event.target))) boxOf(row).checked = event.target.checked;
  settle(form);
});

function move(form, step) {
  const rows = rowsOf(form);
  const place = rows.indexOf(currentRow());
  focusOn(rows[place < 0 ? 0 : Math.min(Math.max(place + step, 0), rows.length - 1)]);
}

function focusOn(row) {
  row?.focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}

function toggle(form) {
  const row = currentRow();
  if (!row) return;
  boxOf(row).checked = !boxOf(row).checked;
  lastClicked = row;
  settle(form);
}

// With nothing selected, a key is about the row with the focus; without one, it does nothing.
function press(form, button) {
  if (button.form === form && selectedIn(form).length === 0) {
    if (!currentRow()) return;
    boxOf(currentRow()).checked = true;
    settle(form);
  }
  button.click();
}

const isWriting = (target) => target.matches?.("input:not([type=checkbox]), select, textarea, [contenteditable]") ?? false;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target)) return;
  const form = formNow();
  const button = document.querySelector(`main button[aria-keyshortcuts="${CSS.escape(event.key)}"]`);
  if (button && !event.repeat) press(form, button);
  else if (form && event.key === "j") move(form, 1);
  else if (form && event.key === "k") move(form, -1);
  else if (form && event.key === "x") toggle(form);
  else return;
  event.preventDefault();
});

// After an answer the page comes anew without the rows that were answered: go on where they stood.
const PLACE = `rows:${location.pathname}`;

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form[data-rows]") || event.defaultPrevented) return;
  const first = event.submitter?.closest("[data-row]") ?? selectedIn(form)[0];
  if (first && currentRow()) sessionStorage.setItem(PLACE, String(rowsOf(form).indexOf(first)));
});

function start() {
  document.documentElement.dataset.keys = "yes";
  const form = formNow();
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (!form) return;
  settle(form);
  const rows = rowsOf(form);
  const named = location.hash.startsWith("#q-") ? document.getElementById(location.hash.slice(1)) : null;
  if (named) named.querySelector("details")?.setAttribute("open", "");
  if (named) focusOn(named);
  else if (place !== null) focusOn(rows[Math.min(Number(place), rows.length - 1)]);
}

start();
