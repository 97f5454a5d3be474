// The theme's search is a dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

// The theme puts a button to copy into a <nav> of each example. A list of unnamed landmarks helps no reader.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
}).observe(document.body, { childList: true, subtree: true });
