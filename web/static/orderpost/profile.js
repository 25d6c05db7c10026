// The page of a profile: a preview that follows the form. Without this, its button asks for it.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("preview-button");
  if (!button) return;
  let timer;
  const show = () => button.form.requestSubmit(button);
  button.form.addEventListener("input", (event) => {
    if (event.target.name === "width") return;
    clearTimeout(timer);
    timer = setTimeout(show, 600);
  });
  const dark = document.getElementById("preview-dark");
  const frame = document.querySelector("iframe.preview");
  const scheme = () => (frame.style.colorScheme = dark.checked ? "dark" : "light");
  dark.addEventListener("change", scheme);
  dark.checked = matchMedia("(prefers-color-scheme: dark)").matches;
  scheme();
  if (dark.checked) show();
});
