/* What the pages can do beyond links and forms: theme, times, live updates, dialogs, copying, keys.
   Everything to be read and every single action works without it. Loaded in the head, so that a chosen
   theme is there before the first paint; all else waits for the document. */
(() => {
  "use strict";

  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);

  // -- what this browser was told to remember; private windows may refuse, and then nothing is remembered

  const recall = (name, otherwise) => {
    try { return localStorage.getItem(`palermo.${name}`) ?? otherwise; } catch { return otherwise; }
  };
  const remember = (name, value) => {
    try { localStorage.setItem(`palermo.${name}`, value); } catch { /* for this page only, then */ }
  };

  // -- theme

  const THEMES = ["auto", "light", "dark"];
  const setTheme = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const select of all("[data-theme-select]")) select.value = theme;
  };
  setTheme(recall("theme", "auto"));
  const chooseTheme = (theme) => { remember("theme", theme); setTheme(theme); };

  // -- times: relative or absolute, and how long something has taken so far

  let skew = 0; // the server's clock minus this one's, in milliseconds
  const readClock = () => {
    const now = Number(one("[data-now]")?.dataset.now);
    if (now) skew = now * 1000 - Date.now();
  };
  const duration = (seconds) => {
    if (seconds < 1) return "0 s";
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
  };
  const AHEAD = 60; // as in formats.py, where the rule of ages is
  const short = (seconds) => duration(seconds).replace(/^(\d+ (min|h|d)) .*/, "$1");
  const relative = (seconds, due) => {
    if (due && seconds <= -1) return `in ${short(-seconds)}`;
    if (seconds < -AHEAD) return `clock ${short(-seconds)} ahead`;
    return seconds < 1 ? "now" : `${short(seconds)} ago`;
  };
  const absolute = (moment) => {
    const pad = (number) => String(number).padStart(2, "0");
    const day = `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
    return `${day} ${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}`;
  };
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const showTimes = () => {
    const exact = recall("times", "relative") === "absolute";
    const now = Date.now() + skew;
    for (const time of all("time[datetime]")) {
      const moment = new Date(time.dateTime);
      const seconds = (now - moment.getTime()) / 1000;
      if (Number.isNaN(seconds)) continue;
      const text = relative(seconds, "due" in time.dataset);
      if ("elapsed" in time.dataset) say(time, seconds < -AHEAD ? text : duration(seconds));
      else say(time, exact ? absolute(moment) : text);
      if (!("elapsed" in time.dataset)) time.title = exact ? text : absolute(moment);
    }
    for (const button of all("[data-times]")) button.setAttribute("aria-pressed", String(exact));
  };
  const turnTimes = () => {
    remember("times", recall("times", "relative") === "absolute" ? "relative" : "absolute");
    showTimes();
  };

  // -- live: the server says when something has changed, and the page asks for itself again

  const HELLO_WITHIN = 4000;
  let source = null;
  let polling = null;
  let pending = false;
  let asking = false;
  let failing = false;

  const held = () => {
    const live = one("#live");
    const focused = document.activeElement;
    const typing = live?.contains(focused) && focused.matches("input:not([type=checkbox]), textarea, select");
    const chosen = document.getSelection();
    const marked = chosen && !chosen.isCollapsed && live?.contains(chosen.anchorNode);
    return Boolean(one("dialog[open]") || one("[data-select]:checked") || typing || marked);
  };
  const every = () => Number(recall("every", "2"));
  const tellState = () => {
    const [state, text] =
      every() === 0 || !one("#live")?.dataset.events ? ["off", "Not live"]
      : failing || one("#trouble[data-away]") ? ["lost", "Out of date"]
      : held() ? ["held", "Held"]
      : ["on", "Live"];
    const stale = state === "lost";
    document.body.toggleAttribute("data-stale", stale);
    const banner = one("#stale");
    if (banner) banner.hidden = !stale || one("#trouble")?.hidden === false;
    for (const element of all(".live-state")) {
      if (element.dataset.state !== state) element.dataset.state = state;
      // Whether there is something newer than what is held.
      element.toggleAttribute("data-pending", pending);
      say(element, text);
    }
  };
  const refresh = () => {
    if (!one("#live")) return;
    pending = document.hidden || held() || asking;
    if (!pending) window.htmx?.trigger(document.body, "palermo:refresh");
    tellState();
  };
  const poll = () => { polling ??= setInterval(refresh, every() * 1000); };
  const disconnect = () => {
    source?.close();
    clearInterval(polling);
    source = polling = null;
  };
  const connect = () => {
    disconnect();
    failing = false;
    tellState();
    const address = one("#live")?.dataset.events;
    if (!address || every() === 0 || document.hidden) return;
    if (!window.EventSource) { poll(); return; }
    const stream = source = new EventSource(`${address}${address.includes("?") ? "&" : "?"}every=${every()}`);
    // A proxy that keeps the stream to itself is as good as none.
    const patience = setTimeout(() => { if (source === stream) { stream.close(); poll(); } }, HELLO_WITHIN);
    let lost = false;
    stream.addEventListener("hello", () => {
      clearTimeout(patience);
      if (!lost) return;
      connect();
      refresh();
    });
    stream.addEventListener("change", refresh);
    stream.addEventListener("error", () => {
      if (source !== stream) return;
      clearTimeout(patience); // or it would close a stream that connects again
      if (stream.readyState === EventSource.CLOSED) {
        poll();
      } else if (lost) {
        failed(true);
      } else {
        // It may only have been cut. While nothing is held, asking for the page tells; else the second attempt does.
        lost = true;
        refresh();
      }
    });
  };
  const chooseInterval = (seconds) => {
    remember("every", seconds);
    for (const select of all("[data-every]")) select.value = seconds;
    connect();
    if (seconds !== "0") refresh();
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { disconnect(); return; }
    connect();
    refresh();
  });
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    for (const button of all("form[method=post] [type=submit]")) button.disabled = false;
    for (const input of all("[data-typed]")) matchTyped(input);
    connect();
  });

  const failed = (is) => { failing = is; tellState(); if (is) poll(); };
  document.addEventListener("htmx:sendError", () => failed(true));
  document.addEventListener("htmx:responseError", ({ detail }) => {
    // The session has ended: the page itself leads to where one signs in.
    if (detail.xhr.status === 401) { location.reload(); return; }
    // The page of an error says what is wrong with the broker.
    const banner = new DOMParser().parseFromString(detail.xhr.responseText, "text/html").querySelector("#trouble");
    if (banner) one("#trouble")?.replaceWith(banner);
    failed(true);
  });
  // What changes while the page is asked for is asked for after it: htmx would drop a second request.
  document.addEventListener("htmx:beforeRequest", () => { asking = true; });
  document.addEventListener("htmx:afterRequest", () => { asking = false; });
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    // A page of Palermo that says "not found" is news, not a failure.
    if (detail.xhr.status === 404 && detail.serverResponse.includes('id="live"')) {
      detail.shouldSwap = true;
      detail.isError = false;
    }
    // The reader may have begun to select or to type since the page was asked for.
    if (held()) {
      detail.shouldSwap = false;
      pending = true;
      tellState();
    }
  });
  document.addEventListener("htmx:afterSwap", () => {
    if (failing) connect();
    tellState();
    reveal();
    readClock();
    showTimes();
  });

  // What needs this script is hidden where it does not run.
  const reveal = () => { for (const element of all("[data-script]")) element.hidden = false; };

  // What a reader has opened or scrolled stays so when the page renews itself.
  const keepReading = () => {
    const morph = window.Idiomorph;
    if (!morph) return;
    morph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.matches("details, dialog")) &&
      name !== "data-is" &&
      !(name === "hidden" && node.matches("[data-script]")) &&
      !(name === "aria-current" && node.matches("tr"));
    morph.defaults.ignoreActiveValue = true;
  };

  // -- dialogs: a link that leads to a page with the dialog open opens it here

  const openDialog = (dialog) => {
    if (dialog.open) dialog.close();
    dialog.showModal();
    one("[autofocus]", dialog)?.focus();
    tellState();
  };
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    const dialog = opener && document.getElementById(opener.dataset.dialog);
    if (dialog && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      openDialog(dialog);
      return;
    }
    const closer = event.target.closest("[data-close]");
    if (closer) {
      event.preventDefault();
      closer.closest("dialog").close();
    } else if (event.target.matches("dialog")) {
      event.target.close(); // the backdrop is the dialog itself, around its content
    }
  });

  // A form whose action waits for words typed: the number of jobs, or a queue's name.
  const matchTyped = (input) => {
    const button = one("[type=submit]", input.form);
    if (button) button.disabled = input.value.trim() !== input.dataset.typed;
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-typed]")) matchTyped(event.target);
  });
  // What is out of date is read, but not acted on.
  document.addEventListener("submit", (event) => {
    if (document.body.hasAttribute("data-stale") && event.target.method === "post") event.preventDefault();
  }, true);
  document.addEventListener("submit", (event) => {
    // Twice pressed is once meant. Only after the form has gone, or its button's value would be missing.
    setTimeout(() => {
      if (event.defaultPrevented) return; // it is asked in a dialog
      for (const button of all("[type=submit]", event.target)) button.disabled = event.target.method === "post";
    });
  });

  // -- copying

  // A link to what is seen now: "the last hour" is pinned to its instants.
  const pinned = () => {
    const address = new URL(location.href), now = Date.now() + skew;
    const ago = (text) => {
      const parts = [...text.matchAll(/(\d+)(s|min|m|h|d|w)/g)];
      if (!parts.length || parts.map(([all]) => all).join("") !== text) return text;
      const seconds = parts.reduce((sum, [, number, unit]) => sum + number * { s: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 }[unit], 0);
      return new Date(now - seconds * 1000).toISOString();
    };
    for (const [name, value] of address.searchParams) {
      if (name === "since" || name === "until") address.searchParams.set(name, ago(value));
      if (name !== "filter") continue;
      const bounded = value.replace(/\b(since|until):(\w+)(?=\s|$)/g, (_, bound, text) => `${bound}:${ago(text)}`);
      const open = /\bsince:/.test(bounded) && !/\buntil:/.test(bounded) && !address.searchParams.has("until");
      address.searchParams.set(name, open ? `${bounded} until:${new Date(now).toISOString()}` : bounded);
    }
    if (address.searchParams.has("since") && !address.searchParams.has("until")) address.searchParams.set("until", new Date(now).toISOString());
    return address.href;
  };
  const copy = async (button) => {
    if ("copyPinned" in button.dataset) one(button.dataset.copy).textContent = pinned();
    const text = one(button.dataset.copy)?.textContent ?? "";
    const before = button.textContent;
    let done = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // No clipboard without a secure connection: select it, for the reader to copy.
      document.getSelection().selectAllChildren(one(button.dataset.copy));
      done = "Selected";
    }
    button.textContent = done;
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    if (event.target.closest("[data-times]")) turnTimes();
    const unfold = event.target.closest("[data-unfold]");
    if (unfold) {
      const folded = all("details", one(unfold.dataset.unfold));
      const open = folded.some((each) => !each.open);
      for (const each of folded) each.open = open;
    }
  });

  // -- what stands open on a wide screen is folded on a narrow one, once

  const foldNarrow = () => {
    for (const each of all("details[data-wide]")) {
      const is = innerWidth >= Number(each.dataset.wide) ? "wide" : "narrow";
      if (each.dataset.is !== is) each.open = is === "wide";
      each.dataset.is = is;
    }
  };

  // -- tables without pages are sorted by their headings

  const UNIT = { ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400 };
  const weight = (cell) => {
    const time = one("time[datetime]", cell);
    if (time) return Date.parse(time.dateTime);
    const text = cell.textContent.trim();
    const parts = [...text.matchAll(/([\d.]+) ?(ms|s|min|h|d)\b/g)];
    if (parts.length) return parts.reduce((sum, [, number, unit]) => sum + number * UNIT[unit], 0);
    return /^[<\d]/.test(text) ? parseFloat(text.replace(/[<,]/g, "")) : text === "–" ? -1 : text.toLowerCase();
  };
  const sorted = new Map(); // by the table's label: its column, and whether the greatest is first
  const sortTable = (table) => {
    const [column, down] = sorted.get(table.dataset.sort) ?? [];
    all("thead th", table).forEach((heading, nth) => {
      if (!heading.textContent.trim() || one("input, .sr-only", heading)) return;
      if (!one(".sort", heading)) {
        const button = document.createElement("button");
        Object.assign(button, { type: "button", className: "sort", textContent: heading.textContent.trim() });
        heading.replaceChildren(button);
      }
      if (nth === column) heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    if (column === undefined) return;
    const rows = all("tr", table.tBodies[0]).filter((row) => row.cells[column]);
    const known = new Map(rows.map((row) => [row, weight(row.cells[column])]));
    const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
    table.tBodies[0].append(...rows.sort((a, b) => order(known.get(a), known.get(b)) * (down ? -1 : 1)));
  };
  const sortTables = () => { for (const table of all("table[data-sort]")) sortTable(table); };
  document.addEventListener("click", (event) => {
    const heading = event.target.closest(".sort")?.parentElement;
    if (!heading) return;
    const table = heading.closest("table"), before = heading.getAttribute("aria-sort");
    const down = before ? before === "ascending" : heading.classList.contains("num");
    sorted.set(table.dataset.sort, [heading.cellIndex, down]);
    sortTable(table);
  });
  document.addEventListener("htmx:afterSwap", sortTables);

  // -- keys; each is in the dialog of "?", where they can be turned off

  let leading = 0;
  const step = (by) => {
    const rows = all("#live tbody tr").filter((row) => one("a[href]", row));
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.hasAttribute("aria-current"));
    const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
    for (const row of rows) row.toggleAttribute("aria-current", row === next);
    one("a[href]", next).focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  const KEYS = {
    "?": () => openDialog(one("#help")),
    "/": () => one("[data-search]")?.focus(),
    r: refresh,
    t: turnTimes,
    d: () => chooseTheme(THEMES[(THEMES.indexOf(recall("theme", "auto")) + 1) % THEMES.length]),
    p: () => chooseInterval(every() === 0 ? "2" : "0"),
    j: () => step(1),
    k: () => step(-1),
    x: () => one("tr[aria-current] [data-select]")?.click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && event.target.matches("input, textarea, select")) { event.target.blur(); return; }
    if (event.target.matches("input:not([type=checkbox]), textarea, select") || one("dialog[open]")) return;
    if (recall("keys", "on") === "off") return;
    const gone = leading && Date.now() - leading < 1500 ? one(`#help a[data-key="${CSS.escape(event.key)}"]`) : null;
    leading = event.key === "g" ? Date.now() : 0;
    if (gone) { event.preventDefault(); gone.click(); return; }
    if (Object.hasOwn(KEYS, event.key)) { event.preventDefault(); KEYS[event.key](); }
  });

  // -- the search: what is offered goes on from the words that were typed before

  const offer = (input) => {
    const before = input.value.replace(/\S*$/, "");
    for (const option of all("option", input.list)) {
      option.dataset.chip ??= option.value;
      option.value = before + option.dataset.chip;
    }
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-offers]")) offer(event.target);
  });

  // -- forms: the signature of the job that is typed, and the reader's own time zone

  const showSignature = (input) => {
    const known = [...input.list.options].find((option) => option.value === input.value);
    for (const element of all("[data-signature-of]")) {
      if (element.dataset.signatureOf === input.id) say(element, known?.label === known?.value ? "" : known.label);
    }
  };
  document.addEventListener("input", (event) => {
    if (event.target.list?.id === "known-jobs") showSignature(event.target);
  });
  const ownZone = () => {
    for (const zone of all("[data-zone-of]:not([data-own])")) {
      zone.dataset.own = "";
      if (document.getElementById(zone.dataset.zoneOf).value) continue;
      zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone;
    }
  };
  document.addEventListener("focusin", ownZone); // also in a dialog that was opened just now

  // -- begin

  document.addEventListener("DOMContentLoaded", () => {
    reveal();
    foldNarrow();
    addEventListener("resize", foldNarrow);
    document.addEventListener("htmx:afterSwap", foldNarrow);
    sortTables();
    // On a phone the navigation and the tabs are wider than the screen.
    for (const current of all(".tabs [aria-current], .nav [aria-current]")) current.scrollIntoView({ inline: "center", block: "nearest" });
    for (const input of all("[data-typed]")) matchTyped(input);
    for (const dialog of all("dialog[open]")) openDialog(dialog);
    ownZone();
    for (const select of all("[data-theme-select]")) {
      select.value = recall("theme", "auto");
      select.addEventListener("change", () => chooseTheme(select.value));
    }
    for (const select of all("[data-every]")) {
      select.value = String(every());
      select.addEventListener("change", () => chooseInterval(select.value));
    }
    for (const box of all("[data-keys]")) {
      box.checked = recall("keys", "on") === "on";
      box.addEventListener("change", () => remember("keys", box.checked ? "on" : "off"));
    }
    // On a phone the navigation scrolls sideways: show where in it this page is.
    one(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    keepReading();
    readClock();
    showTimes();
    connect();
    setInterval(() => {
      showTimes();
      if (pending && !document.hidden && !held()) refresh();
      tellState();
    }, 500);
  });
})();
