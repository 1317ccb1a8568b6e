// The page of a run: passes what the feed reads to the parts of the page.

import { CyclesView } from "./cycles.js";
import { at, make, say, show } from "./dom.js";
import { EventsView } from "./events.js";
import { Feed } from "./feed.js";
import { GroupsView } from "./groups.js";
import { NodesView } from "./nodes.js";
import { ProgressView } from "./progress.js";
import { StatusView } from "./status.js";
import { UpdatesView } from "./updates.js";
import { clock, duration, ms } from "./words.js";

const shown = { run: null, cycles: [], nodes: [] };
let offered = "";

const feed = new Feed({ runs: takeRuns, data: takeData, events: takeEvents, ended: takeEnd, line: showLine });
const status = new StatusView(feed);
const cycles = new CyclesView(feed);
const nodes = new NodesView(feed);
const progress = new ProgressView(feed, (incarnation) => nodes.pick(incarnation));
const groups = new GroupsView((number) => nodes.choose(number));
const updates = new UpdatesView();
const events = new EventsView();

// --- which run -----------------------------------------------------------------------------------

const asked = () => new URLSearchParams(location.hash.slice(1)).get("run");

function choose(id) {
  Object.assign(shown, { run: null, cycles: [], nodes: [] });
  at("main").dataset.empty = "true";
  cycles.clear();
  groups.clear();
  nodes.clear();
  progress.clear();
  updates.clear();
  events.clear();
  feed.start(id);
}

function takeRuns(runs) {
  const newest = [...runs].sort((a, b) => b.start_time_ns - a.start_time_ns);
  offer(newest);
  const isKnown = runs.some((run) => run.id === feed.id || run.name === feed.id);
  if (isKnown || shown.run) {
    offerNewer(newest[0]);
  } else if (newest.length && !asked()) {
    // A run that still goes on, if there is one.
    choose((newest.find((run) => run.end_time_ns == null) ?? newest[0]).id);
  } else {
    const text = newest.length
      ? `This server knows no run ${asked()}. Choose one above.`
      : "The server is there and waits for its coordinator. A run appears here as soon as it begins.";
    say(at("waiting-title"), newest.length ? "No such run" : "No run yet");
    say(at("waiting-text"), text);
  }
}

function offer(runs) {
  const signature = JSON.stringify(runs.map((run) => [run.id, run.name, run.status])) + shown.run?.id;
  if (signature === offered) return;
  offered = signature;
  show(at("choice"), runs.length > 1 || (runs.length === 1 && asked() != null && !runs.some((run) => [run.id, run.name].includes(asked()))));
  const options = runs.map((run) => make("option", { value: run.id, selected: run.id === shown.run?.id }, `${run.name} · ${run.status} · ${clock(ms(run.start_time_ns))}`));
  if (!runs.some((run) => run.id === shown.run?.id)) options.unshift(make("option", { value: "", selected: true }, "choose"));
  at("runs").replaceChildren(...options);
}

function offerNewer(newest) {
  const isNewer = shown.run && newest && newest.id !== shown.run.id && newest.start_time_ns > shown.run.start_time_ns;
  show(at("newer"), Boolean(isNewer) && feed.isOver);
  if (at("newer").hidden || at("newer").dataset.id === newest.id) return;
  at("newer").dataset.id = newest.id;
  at("newer").replaceChildren(
    `A newer run began at ${clock(ms(newest.start_time_ns))}: `,
    make("button", { type: "button", on: { click: () => go(newest.id) } }, `show ${newest.name}`),
  );
}

function go(id) {
  show(at("newer"), false);
  history.replaceState(null, "", `#run=${encodeURIComponent(id)}`);
  choose(id);
}

// --- what the feed reads ------------------------------------------------------------------------------------

function takeData(found) {
  Object.assign(shown, found);
  if (!shown.run) return;
  at("main").dataset.empty = "false";
  if (found.run || found.cycles) status.update(shown.run, shown.cycles);
  if (found.run) groups.update(shown.run.groups ?? []);
  if (found.run) updates.update(shown.run.updates, shown.run.recent_updates ?? []);
  if (found.cycles) cycles.update(shown.cycles, shown.run.groups?.length ?? 0);
  if (found.nodes || (found.cycles && shown.nodes.length)) nodes.update(shown.nodes, shown.cycles);
  if (found.run || found.nodes) progress.update(shown.run, shown.nodes);
  if (found.nodes) events.learnNames(shown.nodes);
  if (feed.knownRuns) offer([...feed.knownRuns].sort((a, b) => b.start_time_ns - a.start_time_ns));
  at("main").dataset.event = shown.run.event_id;
}

function takeEvents(list) {
  for (const each of list) if (each.event.kind === "Looked") nodes.looked(each.timestamp_ns);
  events.take(list);
}

// The run is over, as the event says that ended it; its records are read again if there is still time.
function takeEnd({ ends_run_as, timestamp_ns, event: { verdict = null } }) {
  const sums = status.sumsAt(ms(timestamp_ns));
  feed.run = { ...shown.run, ...sums, status: ends_run_as, status_detail: verdict?.reason ?? "", verdict, end_time_ns: timestamp_ns };
  const end = (each) => (["RUNNING", "WAITING"].includes(each.status) ? { ...each, status: ends_run_as, end_time_ns: timestamp_ns } : each);
  feed.run.groups = (shown.run.groups ?? []).map(end);
  takeData({ run: feed.run, ...(shown.cycles.length && { cycles: shown.cycles.map(end) }) });
}

// --- the connection ----------------------------------------------------------------------------------

function showLine(state) {
  at("line").dataset.state = state.name;
  const words = { connecting: "connecting", live: "live", empty: "connected", unknown: "connected", over: "the run is over", lost: "not connected" };
  say(at("line"), words[state.name]);
  show(at("banner"), state.name === "lost" || (state.name === "unknown" && shown.run != null));
  if (state.name === "unknown") say(at("banner"), `The server does not know run ${shown.run?.name ?? feed.id} any more: this is what it knew last.`);
  if (state.name === "lost" && !shown.run) {
    say(at("waiting-title"), state.error.next ? "Not allowed" : "Not connected");
    say(at("waiting-text"), [state.error.message, state.error.next].filter(Boolean).join(": "));
  }
  tickLine();
}

function tickLine() {
  const { state } = feed;
  document.body.dataset.line = state.name;
  if (state.name !== "lost") return;
  const shownAs = state.asOfMs == null ? "" : ` Showing the state as of ${clock(state.asOfMs)}, ${duration((feed.nowMs() - state.asOfMs) / 1000)} ago.`;
  const said = state.error?.next ? ` The server says: ${state.error.message}: ${state.error.next}.` : "";
  say(at("banner"), `Not connected since ${clock(state.sinceMs)}.${shownAs}${said} Trying again.`);
}

// --- begin -------------------------------------------------------------------------------------------

at("runs").addEventListener("change", (event) => event.target.value && go(event.target.value));
addEventListener("hashchange", () => asked() && asked() !== feed.id && choose(asked()));
setInterval(() => {
  tickLine();
  status.tick();
  cycles.tick();
  nodes.tick();
  progress.tick();
}, 1000);
feed.start(asked());
