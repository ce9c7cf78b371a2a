// Checks the client file as soon as it is chosen or pasted; the button below does the same without script.

const form = document.querySelector("[data-client-form]");
const verdict = form.querySelector(".client-verdict");
let asked = 0;

async function check(content) {
  const mine = ++asked;
  if (content.trim() === "") return say("", "");
  const answer = await fetch("/api/accounts/client", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": form.elements.csrf.value },
    body: JSON.stringify({ content }),
  }).catch(() => null);
  if (mine !== asked) return;
  if (!answer?.ok) return say("", ""); // the button below still checks it
  const reply = await answer.json();
  if (reply.problem) return say("problem", `This file: ${reply.problem}.`);
  say("good", `The client file is good: a Desktop app${reply.project ? ` of the project ${reply.project}` : ""}.`);
}

function say(kind, text) {
  verdict.className = `client-verdict ${kind}`;
  verdict.textContent = text.replaceAll("`", "");
}

form.elements.file.addEventListener("change", async () => {
  const [file] = form.elements.file.files;
  if (file && file.size > 64 * 1024) say("problem", "This file is too large to be a client file.");
  else check(file ? await file.text() : "");
});
form.elements.client_secrets.addEventListener("input", () => check(form.elements.client_secrets.value));
