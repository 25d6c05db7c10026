/* The admin's keys, its colour pickers, what was written and lost, copies, and the refresh of pages. Plain script: each page works without it. */
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

  // A column without a value, an empty cell of a card, and an empty field that nobody edits are left out.
  const isEmpty = (cell) =>
    ["", "-", "–"].includes(cell.textContent.trim()) && !cell.querySelector("svg, img, a, input, select, button");
  function leaveOutEmptyOnes() {
    for (const table of all("#result_list, .scroll table")) {
      const rows = [...(table.tBodies[0]?.rows || [])];
      if (!rows.length || !table.tHead || table.querySelector("[colspan]")) continue;
      [...table.tHead.rows[0].cells].forEach((head, place) => {
        const cells = rows.map((row) => row.cells[place]).filter(Boolean);
        for (const cell of cells) cell.classList.toggle("none", isEmpty(cell));
        if (cells.every(isEmpty)) for (const cell of [head, ...cells]) cell.hidden = true;
      });
    }
    for (const row of all(".form-row")) {
      const values = row.querySelectorAll(".readonly");
      row.hidden = values.length === 1 && isEmpty(values[0]) && !row.querySelector("input, select, textarea");
    }
  }

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

  // What was written comes back if its post was lost: to a login, to a login in another tab, or to an error. This
  // tab keeps the fields of the form that was sent last until a page shows that they were taken.
  const KEPT = "kept";
  const user = document.querySelector("#user-tools strong")?.textContent || "";
  // The page on which a session is renewed has the fields, and sends them itself.
  const isLogin = document.body.matches(".login") && !document.querySelector("form.renewed");

  // A form with a password or a code is left out whole, because the other fields may be secrets, too. What stands in
  // `data-unkept` must be chosen again.
  function writtenFields(form) {
    const fields = new Map();
    if (form.querySelector("input[type=password], [autocomplete=one-time-code]")) return fields;
    for (const field of form.elements) {
      const isWritten = field.matches("textarea, select, input:not([type=hidden], [type=file], [type=submit], [type=button])");
      if (!field.name || !isWritten || field.readOnly || field.closest("[data-unkept]")) continue;
      const key = isTick(field) ? `${field.name}=${field.value}` : `${field.name} ${field.dataset.of || ""}`;
      if (!fields.has(key)) fields.set(key, field);
    }
    return fields;
  }
  const isTick = (field) => field.type === "checkbox" || field.type === "radio";

  function valueOf(field) {
    if (isTick(field)) return field.checked;
    return field.multiple ? [...field.selectedOptions].map((option) => option.value) : field.value;
  }

  function write(field, value) {
    if (isTick(field)) field.checked = value;
    else if (!field.multiple) field.value = value;
    else for (const option of field.options) option.selected = value.includes(option.value);
  }

  // `form.action` and `form.id` would be fields with these names.
  function nameOf(form) {
    const { search } = new URL(form.getAttribute("action") || "", location);
    const first = [...writtenFields(form).values()][0];
    return [location.pathname, search, form.getAttribute("id") || first?.id].join(" ");
  }

  function keep(form) {
    if (form.getAttribute("method")?.toLowerCase() !== "post" || isLogin || form.matches("#changelist-form")) return;
    const written = Object.fromEntries([...writtenFields(form)].map(([key, field]) => [key, valueOf(field)]));
    if (Object.keys(written).length) sessionStorage.setItem(KEPT, JSON.stringify({ form: nameOf(form), user, written }));
    else sessionStorage.removeItem(KEPT);
  }

  function bringBack() {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
    if (!kept) return;
    if (isLogin || document.querySelector("[data-refused]")) {
      sessionStorage.setItem(KEPT, JSON.stringify({ ...kept, isLost: true }));
      return;
    }
    const form = all("form").find((form) => nameOf(form) === kept.form);
    if (!form && kept.isLost && kept.user === user) return; // the user may come to its page later
    sessionStorage.removeItem(KEPT);
    const isTaken = document.querySelector(".messagelist") && !document.querySelector(".messagelist .error");
    if (!form || kept.user !== user || (isTaken && !kept.isLost)) return;
    let came = false;
    for (const [key, field] of writtenFields(form)) {
      if (!Object.hasOwn(kept.written, key)) continue;
      if (JSON.stringify(valueOf(field)) === JSON.stringify(kept.written[key])) continue;
      write(field, kept.written[key]);
      came = true;
    }
    if (!came) return;
    const said = document.createElement("p");
    said.className = "errornote";
    said.setAttribute("role", "status");
    said.textContent = "It was not saved. What you wrote is here again.";
    form.prepend(said);
    form.closest("details")?.setAttribute("open", "");
    form.dispatchEvent(new Event("input", { bubbles: true }));
  }

  let typedIn = null;
  document.addEventListener("input", (event) => (typedIn = event.target.form || typedIn));
  document.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) keep(event.target);
  });

  // A step that a link or an error leads to is open.
  function openTarget() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  }
  addEventListener("hashchange", openTarget);
  openTarget();

  // Buttons that copy ids, addresses and secrets: next to `data-copy`, and to these fields that nobody edits.
  const FIELDS = ["id", "order_id", "email", "recipient_email", "aggregate_id", "event_id", "correlation_id"];
  FIELDS.push("provider_message_id", "idempotency_key", "reference");
  const COPIED = ["[data-copy]", ...FIELDS.map((name) => `.field-${name} .readonly`)].join();
  const textOf = (place) => (place.value ?? place.textContent).trim();

  function addCopyButtons(part) {
    for (const place of part.querySelectorAll(COPIED)) {
      if (["", "-", "–"].includes(textOf(place)) || place.nextElementSibling?.matches(".copy")) continue;
      const button = document.createElement("button");
      const what = document.createElement("span");
      what.className = "visually-hidden";
      what.textContent = ` ${place.dataset.copy || place.parentElement.querySelector("label, .label")?.textContent || ""}`;
      Object.assign(button, { type: "button", className: "copy", onclick: () => copy(place, button) });
      if (place.id) button.id = `copy-${place.id}`;
      button.append("Copy", what);
      place.after(" ", button);
    }
  }

  async function copy(place, button) {
    let words = "Copied";
    try {
      await navigator.clipboard.writeText(textOf(place));
    } catch {
      // A page without https has no clipboard.
      if (place.select) place.select();
      else getSelection().selectAllChildren(place);
      if (!document.execCommand("copy")) words = "Selected";
    }
    button.firstChild.data = words;
    const said = document.querySelector("#said");
    said.textContent = "";
    setTimeout(() => (said.textContent = words), 50); // the same words are told again
  }

  // A part that has `data-waits` is refreshed until it has it no longer.
  const front = document.querySelector("[data-refresh]");
  const plain = (part) => part.innerHTML.replace(/(csrfmiddlewaretoken" value=")[^"]*/g, "$1");
  const before = new Map(front?.hasAttribute("data-parts") ? [...front.children].map((part) => [part.id, plain(part)]) : []);
  makeCards();
  leaveOutEmptyOnes();
  addCopyButtons(document);
  document.addEventListener("DOMContentLoaded", bringBack); // after the pages' own scripts, which follow the fields
  if (!front) return;
  const waits = front.querySelector("[data-waits]") !== null;
  const told = document.querySelector("#refreshed");
  const url = new URL(location.href);
  url.searchParams.set("part", "1");
  let timer;

  // A page with `data-parts` replaces only those of its parts that have changed, keeps what has `data-stays`, and
  // leaves a part alone in which somebody has typed.
  front.addEventListener("input", (event) => event.target.closest("[data-parts] > *")?.classList.add("typed"));

  const PRESSED = "a, button, summary";

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
        addCopyButtons(part);
      } else if (before.get(part.id) !== now) {
        const focus = old.contains(document.activeElement) && document.activeElement;
        // A list that is open would close.
        if (!old.classList.contains("typed") && (!focus || focus.id || focus.matches(PRESSED))) {
          swap(old, part);
          before.set(part.id, now);
        }
      }
      if (!old) before.set(part.id, now);
      last = document.getElementById(part.id);
    }
  }

  function swap(old, part) {
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    const around = focus && (focus.closest("[id]") ?? old).id;
    for (const kept of old.querySelectorAll("[data-stays][id]")) {
      part.querySelector(`[data-stays]#${CSS.escape(kept.id)}`)?.replaceWith(kept);
    }
    for (const step of old.querySelectorAll("details[id]")) {
      const same = part.querySelector(`#${CSS.escape(step.id)}`);
      if (same && same.dataset.done === step.dataset.done && step.open) same.open = true;
    }
    old.replaceWith(part);
    addCopyButtons(part);
    if (!focus) return;
    const place = document.getElementById(around);
    // A button without an id is the one with the same words, so that Enter never presses another one.
    const again = focus.id ? place : [...(place?.querySelectorAll(PRESSED) ?? [])].find((other) => other.textContent === focus.textContent);
    again?.focus({ preventScroll: true });
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const answer = await fetch(url, { signal: AbortSignal.timeout(10000) });
      if (answer.redirected) {
        // The session ended.
        if (typedIn) keep(typedIn);
        return location.reload();
      }
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
      leaveOutEmptyOnes();
      addCopyButtons(front);
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
