/* Charts whose numbers can be read off: uPlot (uplot.min.js) draws what charts.py has written into data-plot, with
   numbers at the axes, the values under the pointer, zoom by dragging, and the way to the jobs behind a bar. Where this
   script does not run, the page has a table of the same numbers. Colours come from charts.css. Nothing here needs inline styles in HTML: the content security policy allows none. */
(() => {
  "use strict";

  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const HOUR = 3600, DAY = 86400;
  const HEIGHT = 168;
  /* The least height of what is not nothing, in pixels: a single failure among millions must be visible. */
  const LEAST = 2;
  const WHOLE = [1, 2, 5].flatMap((digit) => Array.from({ length: 12 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);

  const make = (tag, look, text = "") => {
    const element = document.createElement(tag);
    element.className = look;
    element.textContent = text;
    return element;
  };

  // -- numbers and times as the pages write them (formats.py)

  const pad = (number) => String(number).padStart(2, "0");
  const count = (number) => number.toLocaleString("en", { maximumFractionDigits: 2 });
  const took = (seconds) => {
    if (seconds > 0 && seconds < 0.01) return `${Number((seconds * 1000).toPrecision(2))} ms`;
    if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
    const parts = [[DAY, "d"], [HOUR, "h"], [60, "min"], [1, "s"]];
    const first = parts.findIndex(([size]) => seconds >= size);
    const [size, unit] = parts[first], [less, lesser] = parts[first + 1] ?? [1, ""];
    const rest = Math.floor((seconds % size) / less);
    return `${Math.floor(seconds / size)} ${unit}${lesser && rest ? ` ${rest} ${lesser}` : ""}`;
  };
  const UNITS = {
    jobs: (value) => count(value),
    "jobs/s": (value) => `${count(value)}/s`,
    seconds: took,
    bytes: (value) => `${count(Math.round(value / 1e6))} MB`,
    percent: (value) => `${count(Math.round(value))}%`,
  };

  const iso = (seconds) => new Date(Math.round(seconds * 1000)).toISOString();
  const day = (at) => `${at.getDate()} ${MONTHS[at.getMonth()]}`;
  const clock = (at, step) => `${pad(at.getHours())}:${pad(at.getMinutes())}${step < 60 ? `:${pad(at.getSeconds())}` : ""}`;
  const tick = (seconds, step) => {
    const at = new Date(seconds * 1000);
    return step >= DAY || (at.getHours() === 0 && at.getMinutes() === 0 && at.getSeconds() === 0) ? day(at) : clock(at, step);
  };
  const span = (from, to, step) => {
    const [first, last] = [new Date(from * 1000), new Date(to * 1000)];
    if (step >= DAY && to - from <= DAY) return day(first);
    const dated = Date.now() / 1000 - from > DAY / 2;
    const start = `${dated ? `${day(first)} ` : ""}${clock(first, step)}`;
    return `${start} to ${dated && day(first) !== day(last) ? `${day(last)} ` : ""}${clock(last, step)}`;
  };

  // -- a chart

  class Chart {
    constructor(area) {
      this.area = area;
      this.text = "";
      this.probe = make("i", "");
      this.probe.hidden = true;
      this.image = make("div", "image");
      this.image.setAttribute("role", "img");
      this.tip = make("div", "tip");
      this.tip.hidden = true;
      this.foot = make("p", "foot soft small");
      this.help = make("span", "");
      this.link = make("a", "");
      this.more = make("a", "", "Statistics of this time");
      this.out = make("button", "button small", "Zoom out");
      this.out.type = "button";
      this.out.addEventListener("click", () => this.reset());
      this.foot.append(this.help, this.link, this.more, this.out);
      this.area.replaceChildren(this.probe, this.image, this.foot);
      this.area.hidden = false;
      new ResizeObserver(() => this.fit()).observe(this.area);
    }

    /* Draw what the page says now. A plot of other rows is created again; the same rows at another time keep the zoom. */
    show(text, label) {
      this.image.setAttribute("aria-label", label);
      if (text === this.text) return;
      const before = this.text && JSON.parse(this.text), told = JSON.parse(text);
      this.text = text;
      this.told = told;
      this.rows = [...told.bars, ...told.lines];
      this.times = told.rows.map((_, nth) => told.start + (nth + 0.5) * told.step);
      const same = before && this.plot && ["unit", "step"].every((key) => before[key] === told[key])
        && JSON.stringify(before.bars) === JSON.stringify(told.bars) && JSON.stringify(before.lines) === JSON.stringify(told.lines);
      if (same) {
        const zoom = this.zoomed() && { min: this.plot.scales.x.min, max: this.plot.scales.x.max };
        this.plot.setData(this.data(), !zoom);
        if (zoom) this.plot.setScale("x", zoom);
      } else {
        this.plot?.destroy();
        this.plot = new uPlot(this.options(), this.data(), this.image);
        this.plot.over.append(this.tip);
        this.plot.over.addEventListener("click", () => this.open());
        const asked = addressed(), [from, to] = this.whole();
        if (asked && asked.min < to && asked.max > from) this.plot.setScale("x", asked);
      }
      this.tell();
    }

    /* Bars stand on each other: the highest is drawn first, and the lower ones over it. */
    data() {
      const { bars, lines, rows } = this.told;
      const top = Math.max(1e-9, ...rows.map((row) => bars.reduce((sum, _, nth) => sum + (row[nth] ?? 0), 0)));
      const least = top * LEAST / HEIGHT;
      const stacked = rows.map((row) => {
        let height = 0;
        return bars.map((_, nth) => (row[nth] ? (height += Math.max(least, row[nth])) : height) || null);
      });
      return [
        this.times,
        ...bars.map((_, nth) => stacked.map((row) => row[nth])).reverse(),
        ...lines.map((_, nth) => rows.map((row) => row[bars.length + nth])),
      ];
    }

    options() {
      const { unit, bars, lines, ticks, step } = this.told;
      const colour = (look) => () => this.colour(look);
      const font = `12px ${getComputedStyle(this.area).fontFamily}`;
      const paths = uPlot.paths.bars({ size: [0.86, Infinity, 1], radius: 0.12 });
      const dash = { p95: [6, 3], p99: [2, 3] };
      const scale = ticks.length
        ? { distr: 3, range: () => [ticks[0], ticks.at(-1)] }
        : { range: (_, __, most) => [0, most > 0 ? most * 1.06 : 1] };
      return {
        width: this.width(), height: HEIGHT, padding: [10, 20, 0, 0], legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, dist: 6 }, sync: { key: "palermo" } },
        scales: { x: { range: (_, from, to) => this.range(from, to) }, y: scale },
        axes: [
          { stroke: colour("ink"), font, grid: { show: false }, ticks: { stroke: colour("line"), size: 5 }, space: 76, size: 30, gap: 3,
            values: (_, splits, __, ___, increment) => splits.map((at) => tick(at, increment)) },
          { stroke: colour("ink"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, space: 26, gap: 6,
            ...(ticks.length ? { splits: () => this.told.ticks, filter: (_, splits) => splits } : {}),
            ...(unit === "jobs" ? { incrs: WHOLE } : {}),
            size: (_, values) => 14 + 7 * Math.max(3, ...(values ?? []).map((text) => text?.length ?? 0)),
            values: (_, splits) => splits.map((value) => UNITS[unit](value)) },
        ],
        series: [
          {},
          ...bars.toReversed().map(({ look }) => ({ fill: () => this.fill(look), width: 0, paths, points: { show: false } })),
          ...lines.map(({ look }) => ({ stroke: colour(look), width: 1.6, dash: dash[look], points: { show: false, size: 4 },
            paths: uPlot.paths.linear(), ...this.points() })),
        ],
        hooks: { draw: [() => this.mark()], setCursor: [() => this.say()], setScale: [() => this.tell()],
          setSelect: [(plot) => requestAnimationFrame(() => remember(this.zoomed() ? plot.scales.x : null))] },
      };
    }

    /* A value without neighbours is no line: it is drawn as a point. */
    points() {
      const alone = (plot, series) => plot.data[series].flatMap((value, nth, all) =>
        value != null && all[nth - 1] == null && all[nth + 1] == null ? [nth] : []);
      return { points: { size: 5, width: 0, fill: (plot, series) => plot.series[series].stroke(plot, series), show: true, filter: alone } };
    }

    colour(look) {
      this.probe.className = `look-${look}`;
      return getComputedStyle(this.probe).color;
    }

    /* Failures are hatched: their colour alone is hard to tell from that of successes. */
    fill(look) {
      if (look !== "failed") return this.colour(look);
      const [tile, size] = [document.createElement("canvas"), 6 * devicePixelRatio];
      tile.width = tile.height = size;
      const brush = tile.getContext("2d");
      brush.fillStyle = this.colour("failed-soft");
      brush.fillRect(0, 0, size, size);
      brush.strokeStyle = this.colour(look);
      brush.lineWidth = size / 3;
      for (const shift of [-size, 0, size]) {
        brush.moveTo(shift, size);
        brush.lineTo(shift + size, 0);
      }
      brush.stroke();
      return brush.createPattern(tile, "repeat");
    }

    width() { return Math.max(200, Math.floor(this.area.clientWidth)); }
    fit() { if (this.plot && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: HEIGHT }); }

    // -- zoom

    whole() { return [this.told.start, this.told.start + this.told.rows.length * this.told.step]; }
    range(from, to) {
      const whole = this.whole();
      return from <= this.times[0] && to >= this.times.at(-1) ? whole : [Math.max(from, whole[0]), Math.min(to, whole[1])];
    }
    zoomed() {
      const { min, max } = this.plot.scales.x, [from, to] = this.whole();
      return min != null && max - min < (to - from) * 0.999;
    }
    /* All charts of a page are zoomed together, as they are by dragging and by a double click. */
    reset() {
      for (const chart of charts()) chart.plot.setData(chart.plot.data, true);
      remember(null);
    }

    // -- values, marks and the way to the jobs

    /* What happened in a part: a line of each row, and the deploys in it. */
    say() {
      const { idx, left, top } = this.plot?.cursor ?? {};
      this.at = idx;
      const here = idx != null && left >= 0 && this.plot.over.matches(":hover");
      this.tip.hidden = !here;
      if (!here) return;
      const { start, step, unit, rows, marks } = this.told;
      const from = start + idx * step;
      const lines = this.rows.map(({ name, look }, nth) => {
        const line = make("div", `value look-${look}`);
        const value = rows[idx][nth];
        line.append(make("span", "", name), make("b", "", value == null ? "–" : UNITS[unit](value)));
        return line;
      });
      const deployed = marks.filter(([at]) => at >= from && at < from + step).map(([, release]) => make("div", "look-mark", `deployed: ${release}`));
      const grows = this.told.begun && idx === rows.length - 1 ? ", so far" : "";
      this.tip.replaceChildren(make("div", "when", span(from, from + step, step) + grows), ...lines, ...deployed);
      const room = this.plot.over.clientWidth;
      this.tip.style.left = `${left < room / 2 ? left + 14 : left - 14 - this.tip.offsetWidth}px`;
      this.tip.style.top = `${Math.max(0, Math.min(top, this.plot.over.clientHeight) - this.tip.offsetHeight / 2)}px`;
      if (touches.matches) this.tell();
    }

    tell() {
      if (!this.plot) return;
      const zoomed = this.zoomed(), { step } = this.told;
      this.out.hidden = !zoomed;
      const { min, max } = this.plot.scales.x;
      const chosen = zoomed ? [min, max] : touches.matches && this.at != null && !this.tip.hidden ? this.part(this.at) : null;
      this.link.hidden = !chosen || !this.told.jobs;
      if (chosen) {
        this.link.href = this.address(...chosen);
        this.link.textContent = `Jobs that ended ${span(...chosen, step)}`;
      }
      this.more.hidden = !zoomed || !this.told.detail || max - min > DAY;
      if (!this.more.hidden) this.more.href = this.address(min, max, this.told.detail);
      this.help.hidden = zoomed || Boolean(chosen);
      this.help.textContent = touches.matches ? "Tap for the numbers." : `Drag to zoom.${this.told.jobs ? " Click for the jobs of that time." : ""}`;
    }

    part(nth) {
      const from = this.told.start + nth * this.told.step;
      return [from, from + this.told.step];
    }
    address(from, to, page = this.told.jobs) {
      // The end of a filter belongs to it, and the end of a part to the next part.
      return `${page}${page.includes("?") ? "&" : "?"}since=${iso(from)}&until=${iso(to - 0.001)}`;
    }
    open() { if (this.at != null && this.told.jobs && !touches.matches) location.assign(this.address(...this.part(this.at))); }

    mark() {
      const { ctx, bbox } = this.plot;
      ctx.save();
      if (this.told.begun) {
        // The last part still grows: it is faded, so that it does not look like a fall.
        const { start, step, rows } = this.told;
        const x = Math.max(bbox.left, this.plot.valToPos(start + (rows.length - 1) * step, "x", true));
        ctx.globalAlpha = 0.6;
        ctx.fillStyle = this.colour("begun");
        ctx.fillRect(x, bbox.top, Math.max(0, bbox.left + bbox.width - x), bbox.height);
        ctx.globalAlpha = 1;
      }
      ctx.strokeStyle = this.colour("mark");
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      for (const [at] of this.told.marks) {
        const x = this.plot.valToPos(at, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    }
  }

  // -- the zoom in the address: #zoom=FROM..TO, so that a reload and a link show the same

  const addressed = () => {
    const [min, max] = (/^#zoom=(.+)\.\.(.+)$/.exec(decodeURIComponent(location.hash)) ?? []).slice(1).map((text) => Date.parse(text) / 1000);
    return min < max ? { min, max } : null;
  };
  const remember = (scale) => {
    if (!scale && !location.hash.startsWith("#zoom=")) return;
    const place = location.pathname + location.search;
    history.replaceState(history.state, "", scale ? `${place}#zoom=${iso(scale.min)}..${iso(scale.max)}` : place);
  };

  // -- all charts of the page

  const touches = matchMedia("(hover: none)");
  const drawn = new WeakMap();
  const areas = () => [...document.querySelectorAll("[data-plot] > .drawing")];
  const charts = () => areas().map((area) => drawn.get(area)).filter(Boolean);

  const draw = () => {
    for (const area of areas()) {
      let chart = drawn.get(area);
      if (!chart) drawn.set(area, (chart = new Chart(area)));
      const { dataset } = area.parentElement;
      chart.show(dataset.plot, dataset.label);
    }
  };
  const recolour = () => { for (const chart of charts()) chart.plot.redraw(false, true); };

  // What is drawn stays when the page renews itself; its numbers are then taken from data-plot.
  if (window.Idiomorph) window.Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !drawn.has(node);
  document.addEventListener("htmx:afterSwap", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  draw();
})();
