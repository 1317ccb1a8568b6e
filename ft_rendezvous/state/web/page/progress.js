// How far the workers are, if hangs are looked for: the slowest ranks, and a table with one row for each node that trains.

import { at, make, say, show } from "./dom.js";
import { ago, count, duration } from "./words.js";

const FEW = 24; // With so many nodes or fewer, the table is open from the start.
const ROWS = 200;

export class ProgressView {
  // `pick` is told the incarnation of a node.
  constructor(feed, pick) {
    this.feed = feed;
    this.pick = pick;
    this.clear();
    at("progress-all").addEventListener("toggle", () => this.render());
  }

  clear() {
    this.slowest = [];
    this.training = [];
    this.isOpened = false;
    at("progress-all").open = false;
    this.shown = null;
    this.ages = [];
    show(at("progress"), false);
  }

  update(run, nodes) {
    this.slowest = run.end_time_ns == null ? (run.slowest ?? []) : [];
    this.lateAfter_s = run.late_after_s;
    this.hasGroups = (run.groups?.length ?? 0) > 0;
    const isTold = (node) => node.last_progress_ns != null && node.role === "active" && node.status !== "DEAD";
    this.training = run.end_time_ns == null ? nodes.filter(isTold) : [];
    // The slowest first, as the list has them.
    this.training.sort((a, b) => a.last_progress_ns - b.last_progress_ns || (a.step ?? 0) - (b.step ?? 0) || (a.group ?? 0) - (b.group ?? 0) || a.group_rank - b.group_rank);
    show(at("progress"), this.slowest.length > 0 || this.training.length > 0);
    if (at("progress").hidden) return;
    if (!this.isOpened && this.training.length > 0) {
      this.isOpened = true;
      if (this.training.length <= FEW) at("progress-all").open = true;
    }
    const late = this.lateAfter_s == null ? "" : `; a rank is late after ${duration(this.lateAfter_s)}`;
    say(at("progress-title"), `Slowest ranks${late}`);
    this.render();
  }

  render() {
    const isOpen = at("progress-all").open;
    const signature = JSON.stringify([this.slowest, isOpen && this.training, this.lateAfter_s]);
    if (signature === this.shown) return;
    this.shown = signature;
    this.ages = [];
    const focused = document.activeElement?.dataset?.slow;
    at("slow-list").replaceChildren(...this.slowest.map((each) => this.slowOf(each)));
    if (focused) at("slow-list").querySelector(`[data-slow="${CSS.escape(focused)}"]`)?.focus();
    at("progress-table").replaceChildren(...(isOpen ? this.table() : []));
    this.tick();
  }

  slowOf(slow) {
    const group = slow.group == null ? "" : `group ${slow.group} `;
    return make(
      "li",
      {},
      make(
        "button",
        { type: "button", data: { slow: slow.incarnation }, on: { click: () => this.pick(slow.incarnation) } },
        make("b", {}, `${group}rank ${slow.rank}`),
        make("span", {}, slow.step == null ? "" : `step ${slow.step.toLocaleString("en")}`),
        this.ageOf(slow.last_progress_ns),
        make("span", { class: "where" }, slow.node),
      ),
    );
  }

  table() {
    const headings = ["node", ...(this.hasGroups ? ["group"] : []), "node rank", "slowest rank", "step", "last progress"];
    const more = this.training.length - ROWS;
    const cells = (node) => [
      ...(this.hasGroups ? [node.group ?? ""] : []),
      node.group_rank ?? "",
      node.slowest_rank ?? "",
      node.step == null ? "" : node.step.toLocaleString("en"),
    ];
    const rowOf = (node) => make("tr", { data: { incarnation: node.incarnation } }, make("th", { scope: "row" }, node.name), ...cells(node).map((cell) => make("td", {}, `${cell}`)), make("td", {}, this.ageOf(node.last_progress_ns)));
    return [
      make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...this.training.slice(0, ROWS).map(rowOf)),
      make("caption", {}, more > 0 ? `and ${count(more, "node")} that are further` : ""),
    ];
  }

  // A text that grows older by itself, and stands out once it is half of what makes a rank late.
  ageOf(timeNs) {
    const element = make("span", { class: "age" });
    this.ages.push([element, timeNs]);
    return element;
  }

  tick() {
    const now = this.feed.nowMs();
    for (const [element, timeNs] of this.ages) {
      say(element, ago(timeNs, now));
      const isOld = this.lateAfter_s != null && now - timeNs / 1e6 > 500 * this.lateAfter_s;
      if (isOld !== (element.dataset.old === "true")) element.dataset.old = String(isOld);
    }
  }
}
