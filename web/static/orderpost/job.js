// Refresh the numbers of a running background job once a second, and reload the page when the job has ended.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const job = document.getElementById("job");
  if (!job || job.dataset.state !== "running") return;
  const bar = document.getElementById("job-bar");
  const error = document.getElementById("job-error");
  const show = (progress) => {
    for (const place of job.querySelectorAll("[data-count]")) {
      const value = progress[place.dataset.count];
      if (value !== null) place.textContent = value.toLocaleString("en");
    }
    if (progress.percent !== null) bar.value = progress.percent;
    error.textContent = progress.error;
    error.hidden = !progress.error;
  };
  const refresh = async () => {
    try {
      const answer = await fetch(job.dataset.progress, { credentials: "same-origin" });
      if (answer.ok && !answer.redirected) {
        const progress = await answer.json();
        if (progress.state !== "running") return location.reload();
        show(progress);
      }
    } catch {
      // The server may be away for a moment, so ask again.
    }
    setTimeout(refresh, 1000);
  };
  setTimeout(refresh, 1000);
});
