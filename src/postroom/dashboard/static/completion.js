// Completes the last word of a search as one types: operators, and the values that an operator can have. The browser
// shows them as it shows any list of suggestions, so that keyboard and screen readers know them.

const OPERATORS = [
  "from", "to", "cc", "bcc", "subject", "list", "filename", "attachment", "in", "is", "label", "category", "has", "after", "newer",
  "before", "older", "older_than", "newer_than", "larger", "size", "smaller", "thread", "similar", "rfc822msgid",
];
const PLACES = ["inbox", "sent", "drafts", "spam", "trash", "anywhere"];
const VALUES = {
  from: ["me"],
  to: ["me"],
  in: PLACES,
  is: ["unread", "read", "starred", "important"],
  has: ["attachment", "conversation", "userlabels", "nouserlabels"],
  category: ["primary", "social", "promotions", "updates", "forums", "reservations", "purchases"],
  older_than: ["7d", "1m", "1y"],
  newer_than: ["7d", "1m", "1y"],
  larger: ["1M", "10M"],
};

const input = document.getElementById("f-query");
const list = document.getElementById("completions");
const labels = () => [...document.querySelectorAll("#labels option")].map((option) => option.value);
const quoted = (text) => (/^[\w.@+-]+$/.test(text) ? text : `"${text}"`);

export function completions(word, names) {
  const [, minus, operator, value] = /^(-?)([a-z_0-9]*)(:.*)?$/i.exec(word) ?? [];
  if (operator === undefined || word === "") return [];
  if (value === undefined) {
    return OPERATORS.filter((name) => name.startsWith(operator.toLowerCase())).map((name) => `${minus}${name}:`);
  }
  const typed = value.slice(1).replace(/^"/, "").toLowerCase();
  const known = operator === "label" ? names : (VALUES[operator.toLowerCase()] ?? []);
  const fitting = known.filter((each) => each.toLowerCase().startsWith(typed) && each.toLowerCase() !== typed);
  return fitting.map((each) => `${minus}${operator}:${quoted(each)}`);
}

input?.addEventListener("input", () => {
  const [, before, word] = /^(.*[\s(])?(\S*)$/s.exec(input.value);
  const found = completions(word, labels()).slice(0, 12);
  list.replaceChildren(...found.map((text) => new Option("", `${before ?? ""}${text}`)));
});
