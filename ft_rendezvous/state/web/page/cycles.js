// The timeline: a row per cycle, newest first, each with its bar on a time axis that all rows share.

import { at, copyable, make, say, show, terms } from "./dom.js";
import { CYCLE_MARKS, clock, count, duration, fullTime, ms } from "./words.js";

const FIRST_ROWS = 12;
const MORE_ROWS = 50;
const STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

// When training stopped before a cycle, when it opened, was sealed and ended, in ms; `end` is now while it lasts.
function phasesOf(cycle, nowMs) {
  const start = ms(cycle.start_time_ns);
  const end = cycle.end_time_ns == null ? Math.max(nowMs, start) : ms(cycle.end_time_ns);
  const seal = cycle.seal_time_ns == null ? null : ms(cycle.seal_time_ns);
  const down = cycle.stop_time_ns == null || cycle.lost_s === 0 ? start : Math.min(start, ms(cycle.stop_time_ns));
  return { down, start, seal, end };
}


class Row {
  constructor(onOpen) {
    this.parts = {
      number: make("span", { class: "number" }),
      group: make("span", { class: "of-group", hidden: true }),
      mark: make("span", { class: "mark", "aria-hidden": "true" }),
      status: make("span", { class: "status" }),
      why: make("span", { class: "why" }),
      when: make("span", { class: "when" }),
      phases: make("span", { class: "phases" }),
      failure: make("span", { class: "failure" }),
      unseen: make("i", { class: "phase unseen" }),
      wait: make("i", { class: "phase wait" }),
      train: make("i", { class: "phase train" }),
    };
    const p = this.parts;
    this.more = make("div", { class: "more", hidden: true });
    this.button = make(
      "button",
      { type: "button", class: "row", "aria-expanded": "false" },
      make("span", { class: "line-1" }, p.number, p.group, p.mark, p.status, p.why, p.when),
      make("span", { class: "bar", "aria-hidden": "true" }, p.unseen, p.wait, p.train),
      make("span", { class: "line-2" }, p.phases, p.failure),
    );
    this.button.addEventListener("click", () => {
      const isOpen = this.more.hidden;
      show(this.more, isOpen);
      this.button.setAttribute("aria-expanded", String(isOpen));
      if (isOpen) onOpen();
    });
    this.element = make("li", { class: "cycle" }, this.button, this.more);
  }

  get isOpen() {
    return !this.more.hidden;
  }

  update(cycle, hasGroups) {
    const signature = JSON.stringify([cycle, hasGroups]);
    const isNew = signature !== this.signature;
    this.signature = signature;
    this.cycle = cycle;
    if (!isNew) return;
    const p = this.parts;
    this.element.dataset.status = cycle.status;
    this.element.dataset.cycle = cycle.cycle_id;
    say(p.number, `${cycle.cycle_id}`);
    show(p.group, hasGroups);
    say(p.group, cycle.group == null ? "all groups" : `group ${cycle.group}`);
    say(p.mark, CYCLE_MARKS[cycle.status] ?? "·");
    say(p.status, cycle.status);
    say(p.why, cycle.why_text);
    p.why.title = cycle.why_text;
    say(p.when, clock(ms(cycle.start_time_ns)));
    p.when.title = fullTime(ms(cycle.start_time_ns));
    const first = cycle.first_failure;
    const code = first?.exit_code == null ? "" : `, exit code ${first.exit_code}`;
    say(p.failure, first ? `first failure: ${cycle.first_failure_node} (rank ${first.rank})${first.error.includes("exit code") ? "" : code}: ${first.error}` : "");
    show(p.failure, first != null);
    if (this.isOpen) this.fill();
  }

  // `next` is the cycle after it for the same nodes, if there is one: from when that one counts time as lost, this one did
  // not train. A common cycle of several groups has none: it lasts until the last of them has left it.
  place(axis, nowMs, next) {
    const { down, start, seal, end } = phasesOf(this.cycle, nowMs);
    const stop = seal == null ? end : Math.max(seal, Math.min(end, next ? phasesOf(next, nowMs).down : end));
    const put = (bar, from, to) => {
      show(bar, to > from);
      bar.style.left = `${axis.share(from) * 100}%`;
      bar.style.width = `${Math.max(0, axis.share(to) - axis.share(from)) * 100}%`;
    };
    put(this.parts.unseen, down, start);
    put(this.parts.wait, start, seal ?? end);
    put(this.parts.train, seal ?? end, stop);
    const { cycle } = this;
    const parts = [];
    if (cycle.status === "PENDING") parts.push(`waiting for ${duration((end - start) / 1000)}`, cycle.status_detail);
    else {
      if (cycle.lost_s > 0) parts.push(`${duration(((seal ?? end) - down) / 1000)} without training`);
      parts.push(seal == null ? `not sealed in ${duration((end - start) / 1000)}` : `open to seal ${duration((seal - start) / 1000)}`);
      if (seal != null) parts.push(`${cycle.end_time_ns == null ? "trains for" : "trained"} ${duration((stop - seal) / 1000)} on ${count(cycle.active, "node")}`);
    }
    say(this.parts.phases, parts.filter(Boolean).join(" · "));
  }

  fill() {
    const { cycle } = this;
    const first = cycle.first_failure;
    const time = (ns) => (ns == null ? null : `${clock(ms(ns))} (${fullTime(ms(ns))})`);
    const wait_s = cycle.seal_time_ns == null ? null : (cycle.seal_time_ns - cycle.start_time_ns) / 1e9;
    this.more.replaceChildren(
      terms([
        ["why it began", cycle.why_text],
        ["group", cycle.group == null ? null : `${cycle.group}`],
        ["groups", cycle.groups?.length > 1 ? cycle.groups.join(", ") : null],
        ["groups that left it", Object.entries(cycle.left ?? {}).map(([group, status]) => `${group} (${status})`).join(", ")],
        ["opened by", cycle.opened_by],
        ["opened", time(cycle.start_time_ns)],
        ["sealed", time(cycle.seal_time_ns) ?? "no"],
        ["ended", time(cycle.end_time_ns)],
        ["time lost before the seal", cycle.lost_s > 0 ? `${duration(cycle.lost_s)}, of which ${duration(wait_s)} from opening to seal` : null],
        [cycle.end_time_ns == null ? "now" : "how it ended", cycle.status_detail],
        ["nodes", cycle.seal_time_ns == null ? `${cycle.arrived} arrived` : `${cycle.active} active, ${cycle.standby} standby`],
        ["placement", cycle.placement],
        ["master", cycle.master],
        ["nodes that failed", cycle.failure_count ? String(cycle.failure_count) : null],
        ["first failure", first ? `${cycle.first_failure_node}, rank ${first.rank}${first.after_s == null ? "" : `, ${duration(first.after_s)} after the seal`}` : null],
        ["exit code", first?.exit_code == null ? null : String(first.exit_code)],
        ["error", first ? make("code", {}, first.error) : null, "error"],
        ["log", first?.log_path ? copyable(first.log_path) : null],
      ]),
    );
  }
}

class Axis {
  constructor(fromMs, toMs) {
    this.fromMs = fromMs;
    this.spanMs = Math.max(toMs - fromMs, 1);
  }

  share(timeMs) {
    return Math.min(1, Math.max(0, (timeMs - this.fromMs) / this.spanMs));
  }

  // Whole steps back from the end, as [share, how long ago].
  marks(most) {
    const span_s = this.spanMs / 1000;
    const step = STEPS_S.find((each) => span_s / each <= most) ?? Math.ceil(span_s / most / 86400) * 86400;
    const found = [];
    for (let back = step; back < span_s; back += step) found.push([1 - back / span_s, back]);
    return found;
  }
}

export class CyclesView {
  constructor(feed) {
    this.feed = feed;
    this.rows = new Map();
    this.shown = FIRST_ROWS;
    this.cycles = [];
    at("older").addEventListener("click", () => {
      this.shown += MORE_ROWS;
      this.render();
    });
    addEventListener("resize", () => this.drawOverview());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawOverview());
  }

  clear() {
    this.rows.clear();
    this.cycles = [];
    this.shown = FIRST_ROWS;
    this.render();
  }

  // `groupCount` is 0 in a run without replica groups.
  update(cycles, groupCount = 0) {
    Object.assign(this, { cycles, groupCount });
    this.render();
  }

  render() {
    const visible = this.cycles.slice(-this.shown).reverse();
    const ids = new Set(visible.map((cycle) => cycle.cycle_id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    let before = null;
    for (const cycle of visible) {
      let row = this.rows.get(cycle.cycle_id);
      if (!row) {
        row = new Row(() => row.fill());
        this.rows.set(cycle.cycle_id, row);
      }
      row.update(cycle, this.groupCount > 0);
      // A row that has the keyboard's focus is not moved.
      const next = before ? before.nextSibling : at("cycle-list").firstChild;
      if (row.element !== next) at("cycle-list").insertBefore(row.element, next);
      before = row.element;
    }
    const hidden = this.cycles.length - visible.length;
    show(at("older"), hidden > 0);
    say(at("older"), `Show ${Math.min(hidden, MORE_ROWS)} older (of ${hidden.toLocaleString("en")})`);
    say(at("cycles-title"), this.cycles.length > 1 ? `Cycles (${this.cycles.at(-1).cycle_id})` : "Cycles");
    this.tick();
  }

  lastEnd() {
    return Math.max(...this.cycles.slice(-100).map((cycle) => ms(cycle.end_time_ns)));
  }

  // Every second: bars of what still lasts grow, and so does the axis.
  tick() {
    const last = this.cycles.at(-1);
    if (!last) {
      at("axis").replaceChildren();
      return;
    }
    const nowMs = this.feed.nowMs();
    const shown = [...this.rows.values()];
    const from = Math.min(...shown.map((row) => phasesOf(row.cycle, nowMs).down));
    const ended = this.cycles.every((cycle) => cycle.end_time_ns != null);
    const axis = new Axis(from, ended ? this.lastEnd() : nowMs);
    const next = new Map(this.cycles.map((cycle) => [cycle.previous_id, cycle]));
    for (const row of shown) row.place(axis, nowMs, row.cycle.groups?.length > 1 ? undefined : next.get(row.cycle.cycle_id));
    at("axis").replaceChildren(
      make("span", { class: "ends" }, ended ? "the end" : "now"),
      ...axis.marks(innerWidth < 700 ? 3 : 6).map(([share, back]) => {
        const mark = make("span", {}, `−${duration(back).replace(/\.0 s$/, " s").replace(/ 0 (s|min|h)$/, "")}`);
        mark.style.left = `${share * 100}%`;
        return mark;
      }),
    );
    if (!ended || this.overviewOf !== this.cycles) this.drawOverview();
  }

  drawOverview() {
    const canvas = at("overview");
    show(canvas, this.cycles.length > this.rows.size);
    if (canvas.hidden) return;
    this.overviewOf = this.cycles;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const width = canvas.clientWidth;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(14 * ratio);
    const nowMs = this.feed.nowMs();
    const isOver = this.cycles.every((cycle) => cycle.end_time_ns != null);
    const axis = new Axis(phasesOf(this.cycles[0], nowMs).down, isOver ? this.lastEnd() : nowMs);
    const pen = canvas.getContext("2d");
    // How much of each column of pixels was lost; even a small part is drawn.
    const lost = new Float64Array(canvas.width);
    const isTrained = new Uint8Array(canvas.width);
    for (const cycle of this.cycles) {
      const { down, seal, end } = phasesOf(cycle, nowMs);
      const from = axis.share(down) * canvas.width;
      const to = axis.share(seal ?? end) * canvas.width;
      const share = cycle.group == null ? 1 : 1 / Math.max(1, this.groupCount);
      for (let x = Math.floor(from); x < Math.min(to, canvas.width); x += 1) lost[x] += share * (Math.min(x + 1, to) - Math.max(x, from));
      if (seal != null) isTrained.fill(1, Math.floor(to), Math.ceil(axis.share(end) * canvas.width));
    }
    pen.fillStyle = colour("--train");
    isTrained.forEach((is, x) => is && pen.fillRect(x, 0, 1, canvas.height));
    pen.fillStyle = colour("--bad");
    lost.forEach((share, x) => {
      const height = share > 0 ? Math.max(3 * ratio, Math.min(1, share) * canvas.height) : 0;
      pen.fillRect(x, canvas.height - height, 1, height);
    });
  }
}
