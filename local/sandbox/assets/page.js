// Refresh the list without moving the focus, and send the clicks of the fault panel.
const live = document.getElementById("live");
const search = document.querySelector(".search input");
let shown = null;

function localTimes(root) {
  for (const time of root.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    time.textContent = at.toLocaleTimeString([], { hour12: false });
    time.title = at.toLocaleString();
  }
}

async function refresh() {
  const query = search.value;
  try {
    const response = await fetch("/live?q=" + encodeURIComponent(query));
    const text = await response.text();
    if (!response.ok || query !== search.value || text === shown) return;
    const focused = document.activeElement?.closest?.("#live a")?.getAttribute("href");
    shown = text;
    live.innerHTML = text;
    localTimes(live);
    if (focused) live.querySelector(`a[href="${focused}"]`)?.focus({ preventScroll: true });
  } catch {
    shown = null;
    const state = live.querySelector(".state");
    state.className = "state broken";
    state.textContent = "Provider cannot be reached";
  }
}

async function control(method, body) {
  await fetch("/control/faults", { method, body, headers: { "Content-Type": "application/json" } }).catch(() => {});
  await refresh();
}

localTimes(document);
if (live) {
  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, "", search.value ? "/?q=" + encodeURIComponent(search.value) : "/");
      refresh();
    }, 150);
  });
  document.querySelector(".panel").addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    await control("DELETE");
    if (button.dataset.fault) await control("POST", button.dataset.fault);
  });
  (async () => {
    for (;;) {
      await new Promise((next) => setTimeout(next, 1500));
      if (!document.hidden) await refresh();
    }
  })();
}
