// Conveniences for pages that work without them: regions that renew themselves, local times, a question before danger.

const regions = () => [...document.querySelectorAll("[data-live][id]")];
const topicsOf = (region) => region.dataset.live.split(" ");

function localTimes(root) {
  const form = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (!Number.isNaN(moment.valueOf())) time.title = form.format(moment);
  }
}

// Whoever has no pointer scrolls a wide table by keyboard: it has to take the focus for that.
function reachable(root) {
  for (const box of root.querySelectorAll(".scroll")) {
    if (box.scrollWidth <= box.clientWidth) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", box.querySelector("caption")?.textContent.trim() ?? "Table");
  }
}

// On a phone the rooms stand in a strip that is wider than the screen: the one that is open is scrolled into sight.
function showRoom() {
  const room = document.querySelector(".rooms [aria-current]");
  const strip = room?.closest(".rooms");
  if (strip) strip.scrollLeft = room.offsetLeft - (strip.clientWidth - room.offsetWidth) / 2;
}

// A region is left alone while somebody is at work in it.
const isInUse = (region) => region.contains(document.activeElement) && document.activeElement !== document.body;

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
    // Somebody may have come to one of them meanwhile.
    for (const region of stale.filter((each) => !isInUse(each))) replace(region, page.getElementById(region.id));
  } catch {
    // The server is away, or the login is over: the next page that is opened says so.
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
  // What changed between the making of the page and now was told to nobody; so it is looked at once more.
  source.addEventListener("ready", () => renew(topics).then(() => (document.documentElement.dataset.watched = "yes")));
  source.addEventListener("changed", (event) => renew(JSON.parse(event.data)));
  source.addEventListener("over", () => source.close());
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  document.addEventListener("visibilitychange", () => renew([]));
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.ask;
  if (question && !confirm(question)) event.preventDefault();
});

showRoom();
localTimes(document);
reachable(document);
listen();
document.querySelector(".problem")?.closest(".field")?.querySelector("input, select, textarea")?.focus();
