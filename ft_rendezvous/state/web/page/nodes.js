// The nodes: those in the grid, those that are gone, how many of each kind, the search, and one node's details.

import { at, copyable, make, say, show, terms } from "./dom.js";
import { Grid } from "./grid.js";
import { KINDS, clock, count, duration, fullTime, ms, progressText, ranksText } from "./words.js";

const GONE_ROWS = 200;
const FOUND_NAMED = 12;
const TROUBLE = new Set(["suspect", "dead", "quarantined", "awaited"]);
const order = new Intl.Collator("en", { numeric: true });

const keyOf = (node) => (node.infra_rank != null ? `infra ${node.infra_rank}` : `${node.addr} ${node.pid}`);
const inOrder = (a, b) =>
  (a.infra_rank ?? Infinity) - (b.infra_rank ?? Infinity) || order.compare(a.addr, b.addr) || a.pid - b.pid || 0;

// When the world of each group was sealed, by group; under null, when the newest of all was.
function sealsOf(cycles) {
  const found = new Map();
  let common = 0;
  for (const cycle of cycles) {
    if (cycle.seal_time_ns == null) continue;
    found.set(null, cycle.seal_time_ns);
    if (cycle.group == null) common = cycle.seal_time_ns;
    else found.set(cycle.group, cycle.seal_time_ns);
  }
  return (group) => (group == null ? (found.get(null) ?? 0) : Math.max(common, found.get(group) ?? 0));
}

// In the grid are the live nodes, and the nodes that died since the last seal of their group and have not started again.
// Nodes that died before that seal are listed as gone.
export function split(nodes, cycles) {
  const sealOf = sealsOf(cycles);
  const taken = new Set(nodes.filter((node) => node.status !== "DEAD").map(keyOf));
  const here = [];
  const gone = [];
  // The newest dead first, so that of several lives of a node the last one is shown.
  for (const node of [...nodes].reverse()) {
    if (node.status !== "DEAD") here.push(node);
    else if ((node.end_time_ns ?? 0) >= sealOf(node.group) && !taken.has(keyOf(node))) {
      taken.add(keyOf(node));
      here.push(node);
    } else gone.push(node);
  }
  return { here, gone: gone.sort((a, b) => (b.end_time_ns ?? 0) - (a.end_time_ns ?? 0)) };
}

export class NodesView {
  constructor(feed) {
    this.feed = feed;
    this.nodes = [];
    this.cycles = [];
    this.lookedNs = 0;
    this.kind = null;
    this.group = null;
    this.grid = new Grid(at("viewport"), at("spacer"), at("grid"), {
      hover: (node, x, y, domain) => this.hover(node, x, y, domain),
      pick: (node) => this.pick(node.incarnation),
      move: (node) => say(at("spoken"), this.oneLine(node)),
    });
    at("search").addEventListener("input", () => this.search());
    at("search-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.found?.length) this.pick(this.found[0].node.incarnation);
    });
    at("smaller").addEventListener("click", () => this.zoom(-1));
    at("larger").addEventListener("click", () => this.zoom(1));
    at("node-close").addEventListener("click", () => this.pick(null));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.grid.picked) this.pick(null);
      if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) {
        event.preventDefault();
        at("search").focus();
      }
    });
    at("gone").addEventListener("toggle", () => this.showGone());
    at("domains").addEventListener("toggle", () => this.showDomains());
  }

  zoom(by) {
    const before = this.grid.level;
    this.grid.zoom += by;
    if (this.grid.level === before) this.grid.zoom -= by;
    this.grid.layOut();
  }

  // Show the nodes of one group only, or of all.
  choose(group) {
    this.group = group;
    if (this.here) this.search();
  }

  clear() {
    this.pick(null);
    this.kind = null;
    at("search").value = "";
    this.update([], []);
  }

  update(nodes, cycles) {
    Object.assign(this, { nodes, cycles });
    this.byId = new Map(nodes.map((node) => [node.incarnation, node]));
    const { here, gone } = split(nodes, cycles);
    Object.assign(this, { here, gone });
    // In a run with groups, nodes are drawn by group; those that are in none come last.
    const hasGroups = cycles.some((cycle) => cycle.groups?.length > 0);
    const blockOf = (node) => (hasGroups ? (node.group == null ? "no group" : `group ${node.group}`) : (node.domain ?? ""));
    this.blockWord = hasGroups ? "group" : "domain";
    const domains = new Map();
    const totals = {};
    for (const node of here) {
      const { kind } = node;
      totals[kind] = (totals[kind] ?? 0) + 1;
      const name = blockOf(node);
      if (!domains.has(name)) domains.set(name, { name, nodes: [], counts: {} });
      const domain = domains.get(name);
      domain.nodes.push({ node, kind, ...this.labelsOf(node, kind) });
      domain.counts[kind] = (domain.counts[kind] ?? 0) + 1;
    }
    this.domains = [...domains.values()].sort((a, b) => order.compare(a.name, b.name));
    for (const domain of this.domains) {
      domain.nodes.sort((a, b) => (hasGroups && (a.node.group_rank ?? Infinity) - (b.node.group_rank ?? Infinity)) || inOrder(a.node, b.node));
      domain.isTroubled = Object.keys(domain.counts).some((kind) => TROUBLE.has(kind));
      const trouble = Object.entries(domain.counts).filter(([kind]) => TROUBLE.has(kind));
      const worst = trouble.length ? ` ${KINDS[trouble[0][0]].letter}${trouble.reduce((sum, [, n]) => sum + n, 0)}` : "";
      domain.note = `${domain.nodes.length}${worst}`;
      if (!domain.name) domain.name = domains.size === 1 ? "all nodes" : "no domain";
    }
    this.showKinds(totals);
    this.grid.show(this.domains);
    show(at("no-nodes"), here.length === 0);
    show(at("viewport"), here.length > 0);
    const number = domains.size - Number(domains.has("no group"));
    const named = domains.size > 1 ? ` in ${count(number, this.blockWord)}` : "";
    say(at("nodes-title"), here.length ? `Nodes (${here.length.toLocaleString("en")}${named})` : "Nodes");
    this.search();
    this.showGone();
    this.showDomains();
    this.showDetails();
  }

  labelsOf(node, kind) {
    const rank = kind === "arrived" || kind === "hot spare" ? null : node.group_rank;
    return {
      title: rank == null ? "" : `${rank}`,
      sub: node.infra_rank != null ? `infra ${node.infra_rank}` : node.addr,
    };
  }

  // --- kinds -----------------------------------------------------------------------------------------

  showKinds(totals) {
    const kinds = Object.keys(KINDS).filter((kind) => totals[kind]);
    if (this.kind && !totals[this.kind]) this.kind = null;
    const hasFailed = this.here.some((node) => node.failure_count > 0);
    const signature = JSON.stringify([kinds.map((kind) => [kind, totals[kind]]), this.kind, hasFailed]);
    if (signature === this.kindsShown) return;
    const focused = document.activeElement?.dataset?.kind;
    this.kindsShown = signature;
    at("kinds").replaceChildren(
      ...kinds.map((kind) => {
        const button = make(
          "button",
          { type: "button", title: KINDS[kind].more, data: { kind }, "aria-pressed": String(this.kind === kind) },
          make("i", { class: "swatch", data: { kind }, "aria-hidden": "true" }, KINDS[kind].letter),
          ` ${KINDS[kind].text} `,
          make("b", {}, totals[kind].toLocaleString("en")),
        );
        button.addEventListener("click", () => {
          this.kind = this.kind === kind ? null : kind;
          this.showKinds(totals);
          this.search();
        });
        return make("li", {}, button);
      }),
      hasFailed ? make("li", { class: "failed-note" }, "its workers have failed before") : "",
    );
    if (focused) at("kinds").querySelector(`[data-kind="${CSS.escape(focused)}"]`)?.focus();
  }

  // --- search ----------------------------------------------------------------------------------------

  // Why a node is what is searched for, best reasons first: [order, in words], or null.
  match(node, text) {
    const number = /^(?:(infra|rank|global|group)\D*)?(\d+)$/.exec(text);
    if (!number) {
      const isFound = [node.addr, node.name, node.incarnation, node.domain ?? "", node.unit ?? ""].some((each) => each.toLowerCase().includes(text));
      return isFound ? [4, ""] : null;
    }
    const value = Number(number[2]);
    const isAsked = (which) => !number[1] || number[1] === which;
    const isSeated = node.status !== "DEAD" && node.group_rank != null;
    if (number[1] === "group") return node.group === value ? [1, `rank ${node.group_rank}`] : null;
    if (isAsked("infra") && node.infra_rank === value) return [0, ""];
    if (isAsked("rank") && isSeated && node.group_rank === value) return [1, `rank ${value}`];
    const [first, last] = node.global_ranks ?? [1, 0];
    if (isAsked("global") && isSeated && first <= value && value <= last) return [2, `global rank ${value}`];
    return !number[1] && node.pid === value ? [3, ""] : null;
  }

  search() {
    const text = at("search").value.trim().toLowerCase();
    const ofKind = (node) => (!this.kind || node.kind === this.kind) && (this.group == null || node.group === this.group);
    if (!text && !this.kind && this.group == null) {
      this.found = null;
      this.grid.lit = null;
    } else {
      const among = (nodes) => nodes.map((node) => ({ node, match: text ? this.match(node, text) : [0, ""] })).filter((each) => each.match);
      const here = among(this.here.filter(ofKind)).sort((a, b) => a.match[0] - b.match[0] || inOrder(a.node, b.node));
      this.grid.lit = new Set(here.map(({ node }) => node.incarnation));
      this.found = text && !this.kind && this.group == null ? [...here, ...among(this.gone)] : here;
      if (text && text !== this.searched && here.length) this.grid.reveal(here[0].node.incarnation);
    }
    this.searched = text;
    show(at("found"), this.found !== null);
    if (this.found) this.showFound();
    this.grid.draw();
  }

  showFound() {
    const signature = JSON.stringify(this.found.map(({ node, match }) => [node.incarnation, node.status, match]));
    if (signature === this.foundShown) return;
    this.foundShown = signature;
    const more = this.found.length - FOUND_NAMED;
    at("found").replaceChildren(
      make("span", {}, this.found.length ? `${count(this.found.length, "node")}: ` : "No node matches. "),
      ...this.found.slice(0, FOUND_NAMED).map(({ node, match }) => {
        const text = [node.name, match[1], node.status === "DEAD" ? KINDS[node.kind].text : ""].filter(Boolean).join(", ");
        return make("button", { type: "button", on: { click: () => this.pick(node.incarnation) } }, text);
      }),
      more > 0 ? make("span", {}, `and ${more.toLocaleString("en")} more`) : "",
    );
  }

  // --- nodes that are gone, and counts ------------------------------------------------------------------

  showGone() {
    const { gone } = this;
    show(at("gone"), gone?.length > 0);
    if (!gone?.length) return;
    say(at("gone-title"), `Gone (${gone.length.toLocaleString("en")}): replaced, or not needed any more`);
    if (!at("gone").open) return;
    const signature = `${gone.length} ${gone[0].incarnation}`;
    if (signature === this.goneShown) return;
    this.goneShown = signature;
    at("gone-list").replaceChildren(
      ...gone.slice(0, GONE_ROWS).map((node) =>
        make(
          "li",
          {},
          make("button", { type: "button", data: { incarnation: node.incarnation }, on: { click: () => this.pick(node.incarnation) } }, `${KINDS[node.kind].letter} ${node.name}`),
          ` ${node.end_time_ns ? clock(ms(node.end_time_ns)) : ""} ${node.status_detail}`,
        ),
      ),
      gone.length > GONE_ROWS ? make("li", {}, `and ${gone.length - GONE_ROWS} more`) : "",
    );
  }

  showDomains() {
    show(at("domains"), this.domains?.length > 1);
    say(at("domains-title"), `Counts by ${this.blockWord}`);
    if (!at("domains").open || !this.domains) return;
    const kinds = Object.keys(KINDS).filter((kind) => this.domains.some((domain) => domain.counts[kind]));
    const rows = [...this.domains].sort((a, b) => Number(b.isTroubled) - Number(a.isTroubled) || order.compare(a.name, b.name));
    at("domain-table").replaceChildren(
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, this.blockWord), make("th", { scope: "col" }, "nodes"), ...kinds.map((kind) => make("th", { scope: "col" }, KINDS[kind].text)))),
      make(
        "tbody",
        {},
        ...rows.map((domain) =>
          make("tr", { class: domain.isTroubled ? "troubled" : "" }, make("th", { scope: "row" }, domain.name), make("td", {}, `${domain.nodes.length}`), ...kinds.map((kind) => make("td", {}, `${domain.counts[kind] ?? ""}`))),
        ),
      ),
    );
  }

  // --- one node ----------------------------------------------------------------------------------------

  oneLine(node) {
    const { kind } = node;
    const rank = node.group_rank == null ? "" : `, ${node.group == null ? "" : `group ${node.group} `}rank ${node.group_rank}`;
    return `${node.name}: ${KINDS[kind].text}${rank}${node.domain ? `, ${node.domain}` : ""}${node.status_detail ? `; ${node.status_detail}` : ""}${node.failure_count ? `; failed ${node.failure_count}×` : ""}`;
  }

  hover(node, x, y, domain) {
    const tip = at("tip");
    const text = node ? this.oneLine(node) : domain ? `${domain.name}: ${Object.entries(domain.counts).map(([kind, n]) => `${n} ${KINDS[kind].text}`).join(", ")}` : "";
    show(tip, text !== "");
    if (!text) return;
    say(tip, text);
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
  }

  pick(incarnation) {
    const isNew = incarnation && incarnation !== this.grid.picked;
    this.grid.picked = incarnation;
    if (incarnation) this.grid.reveal(incarnation);
    this.grid.draw();
    this.detailsShown = null;
    this.showDetails();
    if (isNew) at("node").scrollIntoView({ block: "nearest" });
    else if (!incarnation && at("node").contains(document.activeElement)) at("grid").focus();
  }

  showDetails() {
    const node = this.byId?.get(this.grid.picked);
    show(at("node"), node != null);
    if (!node) return;
    const signature = JSON.stringify(node);
    if (signature !== this.detailsShown) {
      this.detailsShown = signature;
      this.fillDetails(node);
    }
    this.tick();
  }

  fillDetails(node) {
    const { kind } = node;
    say(at("node-name"), node.name);
    at("node").dataset.kind = kind;
    const time = (ns) => (ns == null ? null : `${clock(ms(ns))} (${fullTime(ms(ns))})`);
    const isDead = node.status === "DEAD";
    this.beat = make("span", {});
    this.progress = make("span", {});
    at("node-body").replaceChildren(
      make("p", { class: "node-state" }, make("i", { class: "swatch", data: { kind }, "aria-hidden": "true" }, KINDS[kind].letter), make("b", {}, ` ${node.status} `), isDead ? `was ${node.role}` : node.role, `: ${KINDS[kind].more}`),
      terms([
        ["detail", node.status_detail],
        ["group", node.group == null ? null : `${node.group}`],
        ["group rank", node.group_rank == null ? "none" : `${node.group_rank}${isDead ? ", in its last world" : ""}`],
        ["global ranks", node.group_rank == null ? null : ranksText(node)],
        ["infra rank", node.infra_rank == null ? "not given" : String(node.infra_rank)],
        ["address", copyable(node.addr)],
        ["pid", String(node.pid)],
        ["domain", node.domain],
        ["unit", node.unit],
        ["last beat", this.beat],
        ["progress", node.last_progress_ns == null ? null : this.progress],
        ["joined", time(node.joined_ns)],
        ["arrived", node.arrived_ns == null ? "in no cycle yet" : `in cycle ${node.arrived_in}, ${time(node.arrived_ns)}`],
        ["ended", time(node.end_time_ns)],
        ["incarnation", copyable(node.incarnation)],
        ["failures", node.failure_count ? String(node.failure_count) : "none"],
      ]),
      ...[...node.failures].reverse().map((failure) =>
        make(
          "div",
          { class: "fail" },
          make("p", {}, make("b", {}, `✕ cycle ${failure.cycle_id}, rank ${failure.rank}`), `${failure.exit_code == null ? "" : `, exit code ${failure.exit_code}`}${failure.after_s == null ? "" : `, ${duration(failure.after_s)} after the seal`}, ${clock(ms(failure.time_ns))}`),
          make("p", {}, make("code", {}, failure.error)),
          failure.log_path ? make("p", {}, copyable(failure.log_path)) : null,
        ),
      ),
    );
  }

  // After a look at which no node was silent, every live node has beaten.
  looked(timestampNs) {
    this.lookedNs = Math.max(this.lookedNs, timestampNs);
  }

  tick() {
    const node = this.byId?.get(this.grid.picked);
    if (!node || !this.beat) return;
    const beatNs = node.status === "ALIVE" ? Math.max(node.last_beat_ns, this.lookedNs) : node.last_beat_ns;
    const ago_s = (this.feed.nowMs() - ms(beatNs)) / 1000;
    say(this.beat, `${clock(ms(beatNs))}, ${duration(ago_s)} ago${node.status === "ALIVE" ? " or later" : ""}`);
    if (node.last_progress_ns != null) say(this.progress, progressText(node, this.feed.nowMs()));
  }
}
