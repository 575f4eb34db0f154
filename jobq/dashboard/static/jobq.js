// What pages do beyond links and forms, which work without it: pausing what is live, choosing rows, two keys.
"use strict";
(() => {
  const live = () => document.getElementById("live");
  const state = document.getElementById("live-state");
  const pause = document.getElementById("pause");
  let paused = false;
  let failures = 0;
  let waits = 0;

  const chosen = () => document.querySelectorAll("#live input[name=id]:checked:not([type=hidden])").length;
  const clock = () => new Date().toTimeString().slice(0, 8);
  const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };
  let last = state ? state.textContent : "";

  function show() {
    if (!pause) return;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) say(`paused, ${last}`);
    else if (chosen()) say(`waits while rows are chosen, ${last}`);
    else if (!failures) say(last);
  }

  if (pause) {
    last = last.replace("as of", "Live,"); say(last);
    pause.hidden = false;
    pause.addEventListener("click", () => { paused = !paused; show(); });
    document.addEventListener("htmx:before:request", (event) => {
      if (paused || document.hidden || chosen() || Date.now() < waits) event.preventDefault();
    });
    document.addEventListener("htmx:after:request", (event) => {
      const response = event.detail.ctx && event.detail.ctx.response;
      if (response && response.status < 400) { failures = 0; last = `Live, ${clock()}`; show(); }
    });
    document.addEventListener("htmx:before:swap", (event) => {
      const response = event.detail.ctx && event.detail.ctx.response;
      if (!response || response.status < 400) return;
      event.preventDefault();  // what stands there is better than nothing
      failed(response.status === 401 ? "you are not signed in any more; load the page again" : "it does not answer");
    });
    document.addEventListener("htmx:error", () => failed("the service does not answer"));
  }

  function failed(why) {
    failures += 1;
    const seconds = Math.min(60, 2 ** failures);
    waits = Date.now() + 1000 * seconds;
    say(`${last}; ${why}; next try in ${seconds} s`);
  }

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches && box.matches("[data-all]")) {
      for (const each of live().querySelectorAll("input[name=id][type=checkbox]")) each.checked = box.checked;
    }
    show();
  });

  const once = document.querySelector("form[data-once]");
  if (once) once.requestSubmit();

  const KEYS = "jobq-keys-off";
  const off = () => { try { return localStorage.getItem(KEYS) === "1"; } catch { return false; } };
  const keys = document.getElementById("keys");
  if (keys) {
    const name = () => { keys.textContent = off() ? "Switch keys on" : "Switch keys off"; };
    keys.hidden = false;
    name();
    keys.addEventListener("click", () => { try { localStorage.setItem(KEYS, off() ? "0" : "1"); } catch { /* none is kept */ } name(); });
  }
  document.addEventListener("keydown", (event) => {
    const field = event.target;
    if (event.key === "Escape" && field.matches("form[role=search] input") && field.value + field.defaultValue) {
      field.value = "";
      event.preventDefault();
      if (field.defaultValue) field.form.requestSubmit();  // what is listed was filtered by it
      return;
    }
    if (off() || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    if (event.key === "p" && pause) pause.click();
    const first = document.querySelector("form[role=search] input");
    if (event.key === "/" && first) { first.focus(); event.preventDefault(); }
  });
})();
