/* The admin's keys, its colour pickers, and the refresh of pages. Plain script: each page works without it. */
"use strict";

(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const rows = () => all("#result_list tbody tr");
  let here = -1;

  function go(step) {
    const list = rows();
    if (!list.length) return;
    list[here]?.classList.remove("here");
    here = Math.min(Math.max(here + step, 0), list.length - 1);
    list[here].classList.add("here");
    list[here].scrollIntoView({ block: "nearest" });
    (list[here].querySelector("input.action-select, a") || list[here]).focus({ preventScroll: true });
  }

  function resend() {
    const single = document.querySelector("#resend");
    if (single) return single.focus(); // Enter presses it
    const form = document.querySelector("#changelist-form");
    const action = form?.querySelector("select[name=action]");
    if (!action || ![...action.options].some((option) => option.value === "resend")) return;
    const chosen = form.querySelector("input.action-select:checked");
    if (!chosen && rows()[here]) rows()[here].querySelector("input.action-select")?.click();
    action.value = "resend";
    form.querySelector("button[name=index]").click();
  }

  const keys = {
    j: () => go(1),
    k: () => go(-1),
    x: () => rows()[here]?.querySelector("input.action-select")?.click(),
    o: () => rows()[here]?.querySelector("th a, td a")?.click(),
    r: resend,
    h: () => document.querySelector("#site-name a")?.click(),
    "/": () => (document.querySelector("#searchbar") || document.querySelector("#search-all input"))?.focus(),
    "?": () => document.querySelector("#keys")?.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing) return;
    if (event.key === "Enter" && event.target.matches("input.action-select")) {
      event.preventDefault();
      keys.o();
    } else if (Object.hasOwn(keys, event.key)) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  // On a phone the menu opens by a button, and the rows of a list are cards, which repeat the columns' names.
  const button = document.querySelector("#menu-button");
  button?.setAttribute("aria-expanded", "false");
  button?.addEventListener("click", () => {
    button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false"));
  });
  function makeCards() {
    for (const table of all("#result_list, .scroll table")) {
      const names = [...(table.tHead?.rows[0]?.cells || [])].map((cell) => cell.textContent.trim());
      table.classList.add("as-cards");
      for (const row of table.tBodies[0]?.rows || []) {
        [...row.cells].forEach((cell, place) => {
          if (names[place] && !cell.matches(".action-checkbox, [colspan]")) cell.dataset.label = names[place];
        });
      }
    }
  }
  makeCards();

  // Pages have the times of this browser's zone, of which the server knows by a cookie.
  const root = document.querySelector("#site-name a")?.getAttribute("href") || "/admin/";
  const secure = location.protocol === "https:" ? "; Secure" : "";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  document.cookie = `zone=${zone}; Path=${root}; Max-Age=31536000; SameSite=Lax${secure}`;

  // An open filter closes as a menu does.
  document.addEventListener("click", (event) => {
    for (const open of all("details.pick[open]")) if (!open.contains(event.target)) open.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && document.querySelector("details.pick[open]");
    if (!open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });

  // A page that answered a post is at another address, where a reload would post again.
  const posted = document.querySelector("[data-page-url]");
  if (posted) history.replaceState(null, "", posted.dataset.pageUrl);

  // A picker next to its text field, which may be empty. Then it shows the default.
  for (const picker of all("input[data-picks-for]")) {
    const text = document.getElementById(picker.dataset.picksFor);
    const follow = () => {
      picker.value = /^#[0-9a-f]{6}$/i.test(text.value) ? text.value : picker.defaultValue;
    };
    picker.addEventListener("input", () => (text.value = picker.value));
    text.addEventListener("input", follow);
    follow();
    picker.classList.remove("hidden");
  }

  // What was written comes back if the post was lost to a login. It stays in this tab until the post succeeds.
  for (const form of all("form[data-keep]")) {
    // `form.action` would be a field with that name.
    const name = `kept ${location.pathname}${new URL(form.getAttribute("action") || "", location).search}`;
    const fields = () =>
      [...form.elements].filter((field) => field.name && field.matches("textarea, input[type=text], input[type=email], input[type=url]"));
    const kept = JSON.parse(sessionStorage.getItem(name) || "null");
    sessionStorage.removeItem(name);
    if (kept && !document.querySelector(".messagelist")) {
      let came = false;
      for (const field of fields()) {
        if (Object.hasOwn(kept, field.name) && field.value !== kept[field.name]) {
          field.value = kept[field.name];
          came = true;
        }
      }
      if (came) {
        const said = document.createElement("p");
        said.className = "errornote";
        said.setAttribute("role", "status");
        said.textContent = "It was not saved. What you wrote is here again.";
        form.prepend(said);
        form.dispatchEvent(new Event("input"));
      }
    }
    form.addEventListener("submit", () => {
      sessionStorage.setItem(name, JSON.stringify(Object.fromEntries(fields().map((field) => [field.name, field.value]))));
    });
  }

  // A button that copies a field. Without the script it stays hidden.
  function copy(button) {
    const field = document.getElementById(button.dataset.copies);
    field.select();
    const done = () => (button.textContent = "Copied");
    if (navigator.clipboard) navigator.clipboard.writeText(field.value).then(done, () => {});
    else if (document.execCommand("copy")) done(); // a page without https
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copies]");
    if (button) copy(button);
  });

  function showCopyButtons(part) {
    for (const button of part.querySelectorAll("button[data-copies]")) button.hidden = false;
  }
  showCopyButtons(document);

  // A step that a link or an error leads to is open.
  function openTarget() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  }
  addEventListener("hashchange", openTarget);
  openTarget();

  // A part that has `data-waits` is refreshed until it has it no longer.
  const front = document.querySelector("[data-refresh]");
  if (!front) return;
  const waits = front.querySelector("[data-waits]") !== null;
  const told = document.querySelector("#refreshed");
  const url = new URL(location.href);
  url.searchParams.set("part", "1");
  let timer;

  // A page with `data-parts` replaces only those of its parts that have changed, keeps what has `data-keep`, and
  // leaves a part alone in which somebody has typed.
  const plain = (part) => part.innerHTML.replace(/(csrfmiddlewaretoken" value=")[^"]*/g, "$1");
  const before = new Map(
    front.hasAttribute("data-parts") ? [...front.children].map((part) => [part.id, plain(part)]) : []
  );
  front.addEventListener("input", (event) => event.target.closest("[data-parts] > *")?.classList.add("typed"));

  function replace(text) {
    const template = document.createElement("template");
    template.innerHTML = text;
    const fresh = [...template.content.children];
    for (const part of [...front.children]) if (!fresh.some((other) => other.id === part.id)) part.remove();
    let last = null;
    for (const part of fresh) {
      const old = document.getElementById(part.id);
      const now = plain(part);
      if (!old) {
        if (last) last.after(part);
        else front.prepend(part);
        showCopyButtons(part);
      } else if (before.get(part.id) !== now) {
        const focus = old.contains(document.activeElement) && document.activeElement;
        // The focus can move to the new part only by an id.
        if (!old.classList.contains("typed") && (!focus || focus.id)) {
          swap(old, part);
          before.set(part.id, now);
        }
      }
      if (!old) before.set(part.id, now);
      last = document.getElementById(part.id);
    }
  }

  function swap(old, part) {
    const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
    for (const kept of old.querySelectorAll("[data-keep][id]")) {
      part.querySelector(`[data-keep]#${CSS.escape(kept.id)}`)?.replaceWith(kept);
    }
    for (const step of old.querySelectorAll("details[id]")) {
      const same = part.querySelector(`#${CSS.escape(step.id)}`);
      if (same && same.dataset.done === step.dataset.done && step.open) same.open = true;
    }
    old.replaceWith(part);
    showCopyButtons(part);
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const answer = await fetch(url, { signal: AbortSignal.timeout(10000) });
      if (answer.redirected) return location.reload(); // logged out
      if (answer.status === 401) {
        told.textContent = "Your session must be renewed: open the page again. It is as of the time above.";
        timer = setTimeout(refresh, front.dataset.refresh * 1000);
        return;
      }
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      const state = front.querySelector("[data-state]")?.textContent;
      if (before.size) replace(text);
      else if (!front.contains(document.activeElement)) front.innerHTML = text; // so that the user keeps the focus
      makeCards();
      const now = front.querySelector("[data-state]")?.textContent;
      told.textContent = now === state ? "" : `Now: ${now}`;
      if (waits && !front.querySelector("[data-waits]")) return;
    } catch {
      told.textContent = "The server does not answer: this page is as of the time above.";
    }
    timer = setTimeout(refresh, front.dataset.refresh * 1000);
  }

  document.addEventListener("visibilitychange", refresh);
  timer = setTimeout(refresh, front.dataset.refresh * 1000);
})();
