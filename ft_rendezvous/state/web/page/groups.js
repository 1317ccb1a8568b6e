// The replica groups: one row each, with what it does, in which cycle, and what it waits for. Pressing one shows its nodes.

import { at, make, say, show } from "./dom.js";
import { GROUP_MARKS, count, duration } from "./words.js";

const FIRST_ROWS = 24;
const ORDER = ["WAITING", "DISSOLVED", "ERRORED", "ABORTED", "RUNNING", "FINISHED"];

export class GroupsView {
  // `pick` is told the number of a group, or null.
  constructor(pick) {
    this.pick = pick;
    this.picked = null;
    this.isLong = false;
    this.groups = [];
    at("groups-more").addEventListener("click", () => {
      this.isLong = true;
      this.render();
    });
  }

  clear() {
    this.picked = null;
    this.isLong = false;
    this.update([]);
  }

  update(groups) {
    this.groups = groups;
    show(at("groups"), groups.length > 0);
    at("main").dataset.groups = String(groups.length > 0);
    if (this.picked != null && !groups.some((each) => each.group === this.picked)) this.choose(null);
    this.render();
  }

  choose(number) {
    this.picked = number;
    this.pick(number);
  }

  render() {
    const signature = JSON.stringify([this.groups.map(this.textsOf), this.picked, this.isLong]);
    if (signature === this.shown) return;
    this.shown = signature;
    const running = this.groups.filter((each) => each.status === "RUNNING").length;
    const all = this.groups.length;
    say(at("groups-title"), running === all ? `Groups (all ${all} train)` : `Groups (${running} of ${all} train)`);
    const isCut = this.groups.length > FIRST_ROWS && !this.isLong;
    // Of many, those that are not well come first; else they are in the order of their numbers.
    const order = isCut ? [...this.groups].sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status) || a.group - b.group) : this.groups;
    const focused = document.activeElement?.dataset?.group;
    at("group-list").replaceChildren(...order.slice(0, isCut ? FIRST_ROWS : undefined).map((each) => this.rowOf(each)));
    if (focused) at("group-list").querySelector(`[data-group="${CSS.escape(focused)}"]`)?.focus();
    show(at("groups-more"), isCut);
    say(at("groups-more"), `Show ${this.groups.length - FIRST_ROWS} more`);
  }

  textsOf(group) {
    const nodes = group.status === "DISSOLVED" ? "" : `${group.live} of ${group.wanted} nodes`;
    const restarts = group.restarts ? count(group.restarts, "restart") : "";
    const lost = group.lost_s ? `${duration(group.lost_s)} lost` : "";
    const why = group.restarts && group.status === "WAITING" ? group.why_text : "";
    return {
      group: group.group,
      status: group.status,
      facts: [`cycle ${group.cycle_id}`, nodes, restarts, lost].filter(Boolean).join(" · "),
      detail: [why, group.status_detail].filter(Boolean).join("; "),
      last: group.restarts ? `last restarted because ${group.why_text}` : "",
    };
  }

  rowOf(group) {
    const texts = this.textsOf(group);
    const button = make(
      "button",
      { type: "button", title: texts.last, data: { group: group.group }, "aria-pressed": String(this.picked === group.group) },
      make("span", { class: "number" }, `group ${group.group}`),
      make("span", { class: "mark", "aria-hidden": "true" }, GROUP_MARKS[group.status] ?? "·"),
      make("span", { class: "status" }, group.status),
      make("span", { class: "facts" }, texts.facts),
      make("span", { class: "group-detail" }, texts.detail),
    );
    button.addEventListener("click", () => {
      this.choose(this.picked === group.group ? null : group.group);
      this.render();
    });
    return make("li", { class: "group", data: { status: group.status } }, button);
  }
}
