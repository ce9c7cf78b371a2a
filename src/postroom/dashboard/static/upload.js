// Files dropped on a form, and how much of them has been sent. Without this the form sends its files all the same.

function begin(form) {
  const drop = form.querySelector("[data-drop]");
  const input = form.querySelector('input[type="file"]');
  const button = form.querySelector("button");
  const bar = form.querySelector("progress");
  const said = form.querySelector("output");

  const hold = (event, isOver) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    drop.classList.toggle("over", isOver);
  };

  const checkSize = () => {
    const size = [...input.files].reduce((sum, file) => sum + file.size, 0);
    input.setCustomValidity(size > Number(form.dataset.most) ? "These files are too large to be uploaded at once." : "");
  };

  // The answer is a page: the archive with the new import, or with what is wrong.
  const show = (request) => {
    const fresh = new DOMParser().parseFromString(request.responseText, "text/html").querySelector("main");
    if (!fresh) return location.reload();
    document.querySelector("main").replaceChildren(...fresh.childNodes);
    const next = document.querySelector("form[data-upload]");
    if (next) begin(next);
    document.querySelector(".problem")?.closest(".field")?.querySelector("input")?.focus();
  };

  const over = (text) => {
    said.value = text;
    bar.hidden = true;
    button.disabled = false;
  };

  const send = (event) => {
    event.preventDefault();
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.upload.addEventListener("progress", (sent) => {
      bar.value = sent.total ? sent.loaded / sent.total : 0;
      said.value = sent.loaded < sent.total ? `${Math.floor(bar.value * 100)}% uploaded` : "Uploaded";
    });
    request.addEventListener("load", () => show(request));
    request.addEventListener("error", () => over("The upload was interrupted. Choose the files again."));
    bar.hidden = false;
    button.disabled = true;
    request.send(new FormData(form));
  };

  form.classList.add("ready");
  input.addEventListener("change", checkSize);
  form.addEventListener("submit", send);
  form.addEventListener("dragover", (event) => hold(event, true));
  form.addEventListener("dragleave", (event) => hold(event, false));
  form.addEventListener("drop", (event) => {
    hold(event, false);
    if (event.dataTransfer.files.length === 0) return;
    input.files = event.dataTransfer.files;
    checkSize();
    if (form.reportValidity()) form.requestSubmit();
  });
}

const form = document.querySelector("form[data-upload]");
if (form) begin(form);
