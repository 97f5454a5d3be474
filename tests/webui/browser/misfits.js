// The faults of the page that is open, as sentences; see looks.py.
([scrolls, touch]) => {
  const faults = [];
  const title = (element) => {
    const text = (element.textContent || element.value || element.getAttribute("aria-label") || "").trim();
    return `<${element.tagName.toLowerCase()}> ${text.replace(/\s+/g, " ").slice(0, 60)}`;
  };
  const headings = [...document.querySelectorAll("h1")].map(title);
  if (headings.length !== 1) faults.push(`${headings.length} headings h1: ${headings}`);
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} pixels wide in ${innerWidth}`);

  // The dialog covers the page.
  const top = document.querySelector("dialog:modal") ?? document.body;
  // The heads of tables are for screen readers only where a table is a list of cards.
  const hidden = [...document.querySelectorAll(".sr-only, .skip, thead")].filter((element) =>
    element.matches(".skip") || getComputedStyle(element).clipPath !== "none");
  const shown = (element) =>
    element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !hidden.some((each) => each.contains(element));

  // The part of a rectangle that its boxes let be seen.
  const seen = (rect, element) => {
    let [left, right, high, low] = [rect.left, rect.right, rect.top, rect.bottom];
    for (let box = element; box && box !== document.body; box = box.parentElement) {
      const style = getComputedStyle(box);
      if (style.overflowX === "visible" || style.display === "inline") continue;
      const outer = box.getBoundingClientRect();
      [left, right] = [Math.max(left, outer.left), Math.min(right, outer.right)];
      [high, low] = [Math.max(high, outer.top), Math.min(low, outer.bottom)];
    }
    return { left, right, top: high, bottom: low, width: right - left, height: low - high };
  };

  for (const box of top.querySelectorAll("*")) {
    if (box.matches(`${scrolls}, ${scrolls} *, input, select, textarea, svg *`) || !shown(box)) continue;
    const overflow = getComputedStyle(box).overflowX;
    if (["auto", "scroll"].includes(overflow) && box.scrollWidth > box.clientWidth + 1)
      faults.push(`cut off, ${box.scrollWidth} of ${box.clientWidth} pixels seen: ${title(box)}`);
  }

  for (const cell of top.querySelectorAll("tbody th, tbody td"))
    if (shown(cell) && cell.clientWidth < 120 && cell.clientHeight > 160)
      faults.push(`squeezed into ${cell.clientWidth} pixels: ${title(cell)}`);

  const targets = [...top.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
    .filter((target) => shown(target) && !target.closest("svg"));
  for (const target of targets) {
    const whole = target.getBoundingClientRect(), part = seen(whole, target);
    if (!target.closest(scrolls) && (part.width < whole.width - 1 || whole.left < -1 || whole.right > innerWidth + 1))
      faults.push(`cut off: ${title(target)}`);
    // A link within a sentence is as high as its line.
    const inSentence = target.matches("a, summary") && getComputedStyle(target).display === "inline" && target.closest("p, dd, li, .detail");
    if (touch && !inSentence && (whole.width < 23.5 || whole.height < 23.5))
      faults.push(`only ${whole.width.toFixed()} by ${whole.height.toFixed()} pixels to hit: ${title(target)}`);
  }

  // Texts and fields that lie on each other. Lines of one text may touch; the bars of tools and of pages stay above what scrolls.
  const boxes = [];
  const walker = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const owner = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !shown(owner) || owner.closest("select, textarea, svg, pre, .tools, .side, .trace")) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const rect of range.getClientRects()) boxes.push([seen(rect, owner), owner]);
  }
  for (const target of targets)
    if (target.matches("input, select, textarea, .button") && !target.closest(".tools"))
      boxes.push([seen(target.getBoundingClientRect(), target), target]);
  boxes.sort(([a], [b]) => a.top - b.top);
  boxes.forEach(([a, one], nth) => {
    for (const [b, other] of boxes.slice(nth + 1)) {
      if (b.top > a.bottom - 4) break;
      if (one === other || one.contains(other) || other.contains(one)) continue;
      if (a.width < 3 || b.width < 3 || Math.min(a.bottom, b.bottom) - b.top < 5) continue;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2)
        faults.push(`overlapping: ${title(one)} and ${title(other)}`);
    }
  });
  return faults;
}
