/* What the failures can do beyond links and forms: select several with shift or a page at once, ask in a dialog
   instead of on a page, and renew a page whose progress no count of jobs tells. */
(() => {
  "use strict";

  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);
  const rows = () => all("input[name=id][data-select]");

  // -- selecting

  let last = null;
  const say = () => {
    const chosen = rows().filter((box) => box.checked).length;
    const every = one("[data-all]")?.checked;
    const text = every ? "All that match selected" : chosen ? `${chosen.toLocaleString("en")} selected` : "None selected";
    for (const element of all("[data-chosen]")) if (element.textContent !== text) element.textContent = text;
    for (const button of all("[data-needs-choice]")) button.disabled = !every && !chosen;
    for (const box of all("[data-select-page]")) {
      box.checked = chosen > 0 && chosen === rows().length;
      box.indeterminate = chosen > 0 && !box.checked;
    }
  };
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (box.matches("[data-select-page]")) {
      for (const each of rows()) each.checked = box.checked;
      say();
    } else if (box.matches("input[name=id][data-select]")) {
      const boxes = rows();
      if (event.shiftKey && last && boxes.includes(last)) {
        const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
        for (const each of boxes.slice(from, to + 1)) each.checked = box.checked;
      }
      last = box;
      say();
    } else if (box.matches("[data-all]")) {
      say();
    }
  });

  // -- asking in a dialog; where that cannot be had, the page it comes from is shown

  const ask = async (address) => {
    try {
      const answer = await fetch(address, { headers: { accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const dialog = one("#confirm", page);
      if (!answer.ok || !dialog) throw new Error("no dialog");
      one("#confirm")?.remove();
      dialog.removeAttribute("open");
      document.body.append(document.adoptNode(dialog));
      for (const input of all("[data-typed]", dialog)) input.dispatchEvent(new Event("input", { bubbles: true }));
      dialog.addEventListener("close", () => dialog.remove());
      dialog.showModal();
      one("[autofocus]", dialog)?.focus();
    } catch {
      location.assign(address);
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-confirm]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    ask(link.href);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-confirm]")) return;
    event.preventDefault();
    ask(`${form.action}?${new URLSearchParams(new FormData(form, event.submitter))}`);
  });

  // -- progress

  const held = () => Boolean(one("dialog[open]") || one("[data-select]:checked"));
  setInterval(() => {
    if (one("[data-poll]") && !document.hidden && !held()) window.htmx?.trigger(document.body, "palermo:refresh");
  }, 1000);

  document.addEventListener("htmx:afterSettle", say);
  window.addEventListener("pageshow", say); // a reader who comes back finds the boxes ticked as they were
  say();
})();
