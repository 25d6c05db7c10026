// The editor of e-mail templates: line numbers, and a preview that follows the text. The page works without it.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("editor");
  if (!form) return;
  const texts = [...form.querySelectorAll("textarea")];
  const mistakes = document.getElementById("mistakes");

  for (const text of texts) {
    const lines = text.previousElementSibling;
    const number = () => {
      const count = text.value.split("\n").length;
      lines.textContent = Array.from({ length: count }, (_, index) => index + 1).join("\n");
    };
    const scroll = () => (lines.scrollTop = text.scrollTop);
    text.addEventListener("input", number);
    text.addEventListener("scroll", scroll);
    number();
  }

  const show = (answer) => {
    mistakes.replaceChildren(
      ...answer.mistakes.map((one) => {
        const item = document.createElement("li");
        item.textContent = one.says;
        item.dataset.part = one.part;
        item.dataset.line = one.line;
        return item;
      }),
    );
    mistakes.hidden = !answer.mistakes.length;
    if (!answer.mail) return;
    document.getElementById("preview-subject").textContent = answer.mail.subject;
    document.getElementById("preview-html").srcdoc = answer.mail.html;
    document.getElementById("preview-text").textContent = answer.mail.text;
  };

  // One request at a time. A change during a request is sent after it.
  let timer, busy = false, changed = false;
  const refresh = async () => {
    if (busy) return (changed = true);
    busy = true;
    changed = false;
    try {
      const answer = await fetch(form.dataset.preview, { method: "POST", body: new FormData(form) });
      if (answer.ok && !answer.redirected) show(await answer.json());
    } catch {
      // The server may be away for a moment. The next change asks again.
    }
    busy = false;
    if (changed) refresh();
  };
  form.addEventListener("input", (event) => {
    if (event.target.name === "width") return;
    clearTimeout(timer);
    timer = setTimeout(refresh, 500);
  });

  // A click on a mistake selects its line.
  mistakes.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    const text = texts.find((one) => one.dataset.part === item?.dataset.part);
    const line = Number(item?.dataset.line);
    if (!text || !line) return;
    const before = text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    const end = text.value.indexOf("\n", before);
    text.focus();
    text.setSelectionRange(before, end < 0 ? text.value.length : end);
    text.scrollTop = (line - 3) * parseFloat(getComputedStyle(text).lineHeight);
  });
});
