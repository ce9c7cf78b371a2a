// Mail by keyboard, and selecting many messages. Every key presses a button or a link that the page has anyway.

const rows = () => [...document.querySelectorAll(".mail")];
const linkOf = (row) => row.querySelector(".what > a");
const boxOf = (row) => row.querySelector('input[name="message"]');
const rowInUse = () => document.activeElement?.closest?.(".mail") ?? null;

function step(by) {
  const all = rows();
  if (all.length === 0) return;
  const next = all.indexOf(rowInUse()) + by;
  linkOf(all[Math.min(Math.max(next, 0), all.length - 1)]).focus();
}

// Of several rows, those between the last one chosen and this one.
let last = null;
function choose(box, isRange) {
  const boxes = rows().map(boxOf);
  const ends = [boxes.indexOf(last), boxes.indexOf(box)];
  if (isRange && !ends.includes(-1)) {
    for (const each of boxes.slice(Math.min(...ends), Math.max(...ends) + 1)) each.checked = box.checked;
  }
  last = box;
  tell();
}

function tell() {
  const all = document.querySelector("[data-all]");
  if (!all) return;
  const boxes = rows().map(boxOf);
  const count = boxes.filter((box) => box.checked).length;
  all.hidden = false;
  all.querySelector("input").checked = count > 0 && count === boxes.length;
  const said = count > 0 ? `${count} selected` : "";
  const output = all.querySelector("output");
  if (output.value !== said) output.value = said;
}

// On a list the row in use is meant if none is chosen.
function press(key) {
  const target = document.querySelector(`[data-key~="${CSS.escape(key)}"]`);
  if (!target) return false;
  const row = rowInUse();
  if (target.matches('button[name="intent"], summary') && row && !rows().some((each) => boxOf(each).checked)) {
    boxOf(row).checked = true;
    tell();
  }
  if (target.matches("button, a")) {
    keepPlace();
    target.click();
  } else if (target.matches("summary")) {
    target.parentElement.open = true;
    target.parentElement.querySelector("input:not([type=hidden]), select").focus();
  } else {
    target.focus();
    target.select?.();
  }
  return true;
}

// After a change the page is loaded again: the keyboard goes on where it was, or at the next row that is left.
const PLACE = "mail-place";

function keepPlace() {
  const all = rows();
  const place = all.indexOf(rowInUse());
  if (place < 0) return;
  sessionStorage.setItem(PLACE, JSON.stringify(all.slice(place).map((row) => boxOf(row).value)));
}

function resume() {
  const names = JSON.parse(sessionStorage.getItem(PLACE) ?? "[]");
  sessionStorage.removeItem(PLACE);
  const all = new Map(rows().map((row) => [boxOf(row).value, row]));
  const row = all.get(names.find((name) => all.has(name))) ?? (names.length > 0 ? rows().at(-1) : undefined);
  if (row) linkOf(row).focus();
}

const isWriting = (element) =>
  element.isContentEditable || element.matches('input:not([type="checkbox"]):not([type="radio"]), textarea, select');

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target)) return;
  const isList = document.querySelector(".mails") !== null;
  if (isList && (event.key === "j" || event.key === "k")) step(event.key === "j" ? 1 : -1);
  else if (isList && event.key === "x" && rowInUse()) {
    const box = boxOf(rowInUse());
    box.checked = !box.checked;
    choose(box, false);
  } else if (isList && event.key === "u") {
    if (!press("z")) return;
  } else if (!press(event.key)) return;
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const box = event.target.closest?.('.mail input[name="message"]');
  if (box) choose(box, event.shiftKey);
  if (event.target.id === "all") {
    for (const row of rows()) boxOf(row).checked = event.target.checked;
    tell();
  }
  // A menu closes when something else is used.
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

new MutationObserver(tell).observe(document.getElementById("main"), { childList: true, subtree: true });
tell();
resume();
