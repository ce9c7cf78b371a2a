// Conveniences for pages that work without them: live regions, local times, confirmation before dangerous changes.

const regions = () => [...document.querySelectorAll("[data-live][id]")];
const topicsOf = (region) => region.dataset.live.split(" ");

// Times in the reader's zone. A tooltip has the exact time: in UTC below a time that is exact itself.
const seconds = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const minutes = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const exact = (moment) => (moment % 60_000 === 0 ? minutes : seconds).format(moment);
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    if (time.classList.contains("exact")) time.textContent = exact(moment);
    else time.title = exact(moment);
    if (time.classList.contains("date")) time.textContent = shortDate(moment, new Date());
  }
}

function shortDate(moment, now) {
  if (moment.toDateString() === now.toDateString()) return clock.format(moment);
  const year = moment.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return moment.toLocaleDateString(undefined, { day: "numeric", month: "short", year });
}

// A wide table must be focusable to be scrolled by keyboard.
function reachable(root) {
  for (const box of root.querySelectorAll(".scroll")) {
    if (box.scrollWidth <= box.clientWidth) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", box.querySelector("caption")?.textContent.trim() ?? "Table");
  }
}

// A region is not replaced while it has the focus, or while rows of it are selected.
const hasFocus = (region) => region.contains(document.activeElement) && document.activeElement !== document.body;
const CHOSEN = "[data-row] input:checked";
const isInUse = (region) => hasFocus(region) || region.querySelector(CHOSEN) !== null;

let renewing = false;
let missed = new Set();

async function renew(topics) {
  for (const topic of topics) missed.add(topic);
  if (renewing || document.hidden) return;
  const stale = regions().filter((region) => topicsOf(region).some((topic) => missed.has(topic)) && !isInUse(region));
  if (stale.length === 0) return;
  renewing = true;
  missed = new Set();
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1", Accept: "text/html" }, redirect: "error" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    // One of them may have got the focus meanwhile.
    for (const region of stale.filter((each) => !isInUse(each))) replace(region, page.getElementById(region.id));
  } catch {
    // The server is unreachable or the login is over: the next page shows it.
  } finally {
    renewing = false;
  }
  if (missed.size > 0) setTimeout(() => renew([]), 1000);
}

function replace(region, fresh) {
  if (!fresh || fresh.innerHTML === region.innerHTML) return;
  const open = new Set([...region.querySelectorAll("details[open][id]")].map((details) => details.id));
  region.replaceChildren(...fresh.childNodes);
  for (const details of region.querySelectorAll("details[id]")) if (open.has(details.id)) details.open = true;
  localTimes(region);
  reachable(region);
}

function listen() {
  const topics = [...new Set(regions().flatMap(topicsOf))];
  if (topics.length === 0) return;
  const source = new EventSource(`/live?topics=${encodeURIComponent(topics.join(","))}`);
  // Changes between the rendering of the page and now were not reported, so refresh once.
  source.addEventListener("ready", () => renew(topics).then(() => (document.documentElement.dataset.watched = "yes")));
  source.addEventListener("changed", (event) => renew(JSON.parse(event.data)));
  source.addEventListener("over", () => source.close());
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  document.addEventListener("visibilitychange", () => renew([]));
}

// What was said about a change goes after ten seconds: the page moves on, and the words do not. A problem stays, and so
// does a bar with Undo.
function forget(notice) {
  if (notice.matches(":hover, :focus-within")) setTimeout(() => forget(notice), 2_000);
  else notice.remove();
}

const passing = document.querySelectorAll(".notice.flash.done:not(.undoable)");
for (const notice of passing) setTimeout(() => forget(notice), 10_000);

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.ask;
  if (question && !confirm(question)) event.preventDefault();
});

localTimes(document);
reachable(document);
listen();
document.querySelector(".problem")?.closest(".field")?.querySelector("input, select, textarea")?.focus();
