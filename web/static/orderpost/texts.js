// The page of an e-mail's sentences: a preview that follows the texts, variables at a click, and undo.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("texts");
  if (!form) return;
  const frame = document.getElementById("preview-html");
  const dark = document.getElementById("preview-dark");
  let html = frame.dataset.html; // no srcdoc: a second navigation during the first may leave the frame empty
  let changed = false;

  const show = () => {
    const scheme = dark.checked ? "dark" : "light";
    frame.style.colorScheme = scheme;
    frame.srcdoc = `${html}<style>:root{color-scheme:${scheme}!important}</style>`;
  };
  dark.checked = matchMedia("(prefers-color-scheme: dark)").matches;
  dark.addEventListener("change", show);
  show();

  // A newer request replaces the one before.
  let timer, request;
  const refresh = async () => {
    request?.abort();
    request = new AbortController();
    try {
      const body = new FormData(form);
      const answer = await fetch(form.dataset.preview, { method: "POST", body, signal: request.signal });
      if (answer.status === 429) return renew(1000); // others have the slow pages at this moment
      if (!answer.ok || answer.redirected) return;
      const preview = await answer.json();
      html = preview.html;
      show();
      document.getElementById("preview-subject").textContent = preview.subject;
      document.getElementById("preview-text").textContent = preview.text;
      for (const [name, text] of Object.entries(preview.mistakes)) {
        const place = document.getElementById(`${name}-mistake`);
        if (!place) continue;
        place.textContent = text;
        place.hidden = !text;
      }
    } catch {
      // Replaced by a newer request, or the server is away for a moment. The next change asks again.
    }
  };
  const renew = (wait = 300) => {
    clearTimeout(timer);
    timer = setTimeout(refresh, wait);
  };
  form.addEventListener("input", (event) => {
    if (event.target !== form && (!event.target.name || event.target.name === "width")) return;
    if (event.target === form || event.target.name.startsWith("text-")) changed = true;
    renew();
  });

  form.addEventListener("click", (event) => {
    const button = event.target.closest("button[type=button]");
    const sentence = button?.closest(".sentence");
    if (!sentence) return;
    const text = sentence.querySelector("textarea, input");
    if (button.dataset.insert) {
      text.setRangeText(button.dataset.insert, text.selectionStart, text.selectionEnd, "end");
    } else if ("copy" in button.dataset) {
      text.value = sentence.querySelector(".present").innerText;
    } else if ("undo" in button.dataset) {
      text.value = "";
    }
    text.focus();
    text.dispatchEvent(new Event("input", { bubbles: true }));
  });

  // On a narrow window the preview stands below the sentence that is written.
  const editor = form.querySelector(".editor");
  const beside = form.querySelector(".beside");
  const wide = matchMedia("(min-width: 1100px)");
  form.addEventListener("focusin", (event) => {
    const sentence = event.target.closest(".sentence");
    if (sentence && !wide.matches && sentence.nextElementSibling !== beside) sentence.after(beside);
  });
  wide.addEventListener("change", () => {
    if (wide.matches) editor.append(beside);
  });

  form.addEventListener("submit", () => (changed = false));
  addEventListener("beforeunload", (event) => {
    if (changed) event.preventDefault();
  });
});
