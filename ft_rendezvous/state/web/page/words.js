// Names, numbers and sentences. Pure: no element, no request.

export const NAMED = 8; // How many nodes a sentence names.

// --- numbers -------------------------------------------------------------------------------------

export const ms = (ns) => ns / 1e6;

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "—";
  const s = Math.max(0, seconds);
  if (s < 0.095) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 59.5) return `${Math.round(s)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(timeMs) {
  const at = new Date(timeMs);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const isFar = Math.abs(Date.now() - timeMs) > 20 * 3600 * 1000;
  return isFar ? `${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}` : time;
}

export const fullTime = (timeMs) => new Date(timeMs).toISOString().replace("T", " ").replace("Z", " UTC");

export function percent(part, whole) {
  if (!(whole > 0)) return "0 %";
  const share = (100 * part) / whole;
  if (share === 0) return "0 %";
  return share < 0.1 ? "under 0.1 %" : `${share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// --- statuses ------------------------------------------------------------------------------------

// Every colour has a mark beside it: a reader who does not see colours misses nothing.
export const RUN_MARKS = {
  INITIALIZING: "…", SCHEDULING: "…", RUNNING: "▶", RESTARTING: "↻", RESIZING: "↔", FINISHED: "✓", ERRORED: "✕", ABORTED: "■",
};
export const CYCLE_MARKS = { PENDING: "…", RUNNING: "▶", FINISHED: "✓", ERRORED: "✕", ABORTED: "■" };
export const GROUP_MARKS = { RUNNING: "▶", WAITING: "…", FINISHED: "✓", DISSOLVED: "–", ERRORED: "✕", ABORTED: "■" };
export const RUN_HINTS = {
  INITIALIZING: "the store is there, no node has come yet",
  SCHEDULING: "nodes gather for the first time",
  RESTARTING: "no node trains: the next world is not sealed yet",
  RESIZING: "no node trains: a larger world is being formed",
};

export const CAUSES = {
  first: "first start", workers_failed: "workers failed", workers_hang: "workers hung", nodes_lost: "nodes lost", node_left: "a node left",
  restart_requested: "restart asked for", nodes_drain: "nodes drained", world_grows: "world grows",
  no_group_trains: "no group trained", group_fails_again: "a group failed again and again", group_forms: "a new group",
};
export const causeText = (cause) => CAUSES[cause] ?? cause.replaceAll("_", " ");

// The kinds of nodes, as the server names them, in the order of the legend: letter, name and meaning.
export const KINDS = {
  active: { letter: "A", text: "active", more: "has a rank and runs workers" },
  standby: { letter: "S", text: "standby", more: "arrived, was not placed; waits" },
  "hot spare": { letter: "H", text: "hot spare", more: "came after the seal; waits for the next cycle" },
  arrived: { letter: "+", text: "arrived", more: "is in the cycle that is being formed" },
  awaited: { letter: "…", text: "awaited", more: "was in the last world, is not in this cycle yet" },
  finished: { letter: "✓", text: "finished", more: "its workers ended well" },
  suspect: { letter: "?", text: "suspect", more: "it has not beaten for half a lease" },
  dead: { letter: "✕", text: "dead", more: "lost, refused or left" },
  drained: { letter: "D", text: "drained", more: "was asked to give up its place, and did" },
  quarantined: { letter: "Q", text: "quarantined", more: "failed first too often" },
  left: { letter: "–", text: "left", more: "went when the run was over" },
};

// How long ago it was, in whole seconds: progress is not known better.
export function ago(timeNs, nowMs) {
  const seconds = Math.floor(Math.max(0, nowMs - ms(timeNs)) / 1000);
  if (seconds === 0) return "just now";
  return `${seconds < 10 ? `${seconds} s` : duration(seconds)} ago`;
}

// How far a node's slowest worker is, and which one that is.
export const progressText = (node, nowMs) =>
  [node.step == null ? "" : `step ${node.step.toLocaleString("en")}`, ago(node.last_progress_ns, nowMs), node.slowest_rank == null ? "" : `rank ${node.slowest_rank}`].filter(Boolean).join(", ");

export function ranksText(node) {
  if (node.global_ranks == null) return "not known";
  const [first, last] = node.global_ranks;
  return first === last ? `${first}` : `${first} to ${last}`;
}

// --- why a cycle was opened ------------------------------------------------------------------------

const rest = (total, named) => (total > named ? ` and ${total - named} more` : "");

export const groupNames = (groups) => `group${groups.length === 1 ? "" : "s"} ${groups.slice(0, NAMED).join(", ")}${rest(groups.length, Math.min(NAMED, groups.length))}`;

export function whyText(why) {
  switch (why?.why) {
    case "first": return "the run begins";
    case "workers_failed": return `workers failed on ${why.node} (rank ${why.rank}): ${why.reason}`;
    case "workers_hang": return `workers hang${why.is_blamed ? ` on ${why.node} (rank ${why.rank})` : ""}: ${why.reason}`;
    case "nodes_lost": {
      const named = why.nodes.map((node, i) => `${node} (rank ${why.ranks[i]})`).join(", ");
      return `lost ${named}${rest(why.count ?? 1, why.nodes.length)}`;
    }
    case "node_left": return `${why.node} (rank ${why.rank}) went, ${why.outcome}${why.reason ? `: ${why.reason}` : ""}`;
    case "restart_requested": return `${why.by} asked for a restart: ${why.reason || "no reason given"}`;
    case "nodes_drain": return `draining ${why.nodes.join(", ")}${rest(why.count, why.nodes.length)}`;
    case "world_grows": return `the world can grow from ${why.was} to ${why.to} nodes`;
    case "no_group_trains": return `no group trains any more: ${groupNames(why.groups)} ended, the first because ${why.first}`;
    case "group_fails_again": return `group ${why.group} failed ${why.times} times in a row soon after its start`;
    case "group_forms": return `${why.nodes} nodes stand by that no other group lacks`;
    default: return JSON.stringify(why ?? null);
  }
}

// --- a sentence per event ----------------------------------------------------------------------------

const FENCED = {
  lost: "was lost", deaf: "beats but does not act, and was fenced", replaced: "was replaced by a newer start of itself",
  refused: "was refused", quarantined: "is quarantined",
};
const tail = (text) => (text ? `: ${text}` : "");

// Several nodes in few words: `infra ranks 0 to 4, 6` where all have one, else the first few by name.
export function nameAll(incarnations, nameOf) {
  const names = incarnations.map(nameOf);
  const found = names.map((name) => /^infra rank (\d+)\b/.exec(name));
  if (names.length > 1 && found.every(Boolean)) {
    const spans = [];
    for (const rank of found.map((match) => Number(match[1])).sort((a, b) => a - b)) {
      const last = spans.at(-1);
      if (last && rank <= last[1] + 1) last[1] = rank;
      else spans.push([rank, rank]);
    }
    const told = spans.slice(0, NAMED).map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`));
    return `infra ranks ${told.join(", ")}${spans.length > NAMED ? " and others" : ""}`;
  }
  return names.slice(0, NAMED).join(", ") + rest(names.length, Math.min(NAMED, names.length));
}

function failureText(failure) {
  const after = failure.after_s == null ? "" : ` ${duration(failure.after_s)} after the seal`;
  const words = failure.last_words && !failure.reason.includes(failure.last_words) ? ` — ${failure.last_words}` : "";
  const path = failure.log_path ? ` — log: ${failure.log_path}` : "";
  return `${failure.node} (rank ${failure.rank})${after}: ${failure.reason}${words}${path}`;
}

// An update that was completed at the first attempt.
export const isPlainUpdate = (update) => update.outcome === "completed" && update.attempts <= 1;

export function failedText(update) {
  const more = update.failed_count - update.failed.length;
  return `${update.failed.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

function updateText(update) {
  const tries = update.attempts > 1 ? ` in ${update.attempts} attempts` : "";
  const failed = update.failed_count ? `; failed: ${failedText(update)}` : "";
  return `version ${update.version} ${update.outcome}${tries}, ${update.updated} of ${count(update.parties, "party", "parties")}${failed}${tail(update.reason)}`;
}

function placementText(e) {
  const parts = [
    [e.kept, "keeps its rank", "keep their ranks"], [e.moved, "has another rank", "have other ranks"],
    [e.new, "is new", "are new"], [e.benched, "is a spare now", "are spares now"],
  ];
  const counts = parts.filter(([n]) => n).map(([n, one, many]) => `${count(n, "node")} ${n === 1 ? one : many}`);
  return `${counts.join(", ")}; ${e.effect}`;
}

const cycleName = (e) => (e.group == null ? `Cycle ${e.cycle_id}` : `Cycle ${e.cycle_id} of group ${e.group}`);

// [how grave it is, sentence]; grave is one of bad, warn, good, plain, routine.
const SENTENCES = {
  RunBegan: (e) => ["good", `The run ${e.run_id} began on ${e.host}, for ${e.settings?.nnodes ?? "?"} nodes.`],
  Looked: (e) => ["routine", `The coordinator looked: ${count(e.live, "node")} live, the oldest beat ${duration(e.oldest_s)} ago.`],
  RecordRefused: (e) => ["warn", `A record was refused${tail(e.record?.reason)}: ${e.record?.excerpt ?? ""}`],
  RunEnded: (e) => [
    { succeeded: "good", failed: "bad" }[e.verdict.kind] ?? "warn",
    `The run is over: ${e.verdict.kind}${tail(e.verdict.reason)}.${e.verdict.is_retryable ? " Another start may do better." : ""}`,
  ],
  HostLeft: () => ["bad", "The store host was ended before the run had a verdict."],
  CycleOpened: (e) => [
    ["workers_failed", "workers_hang", "nodes_lost", "no_group_trains", "group_fails_again"].includes(e.why?.why) || e.why?.outcome === "failed" ? "bad" : "plain",
    `${cycleName(e)} opened: ${whyText(e.why)}.`,
  ],
  CauseCorrected: (e) => ["bad", `The cause of cycle ${e.cycle_id} is corrected: ${whyText(e.why)}.`],
  CycleWaits: (e) => ["plain", `${cycleName(e)} waits: ${e.reason}.`],
  CycleSealed: (e) => [
    "good",
    `${cycleName(e)} sealed after ${duration(e.waited_s)}: ${count(e.placement.ranks.length, "node")} train` +
      `${(e.placement.groups?.length ?? 1) > 1 ? ` in ${e.placement.groups.length} groups` : ""}` +
      `${e.group == null ? `, ${e.placement.standbys.length} on standby` : ""}; master ${e.master}.`,
  ],
  GroupDissolved: (e) => ["bad", `Group ${e.group} is dissolved: ${e.reason}; ${count(Object.keys(e.changed).length, "node")} of it stood by.`],
  CyclePlaced: (e) => ["plain", `Placement of cycle ${e.cycle_id}: ${placementText(e)}.`],
  CycleCalled: (e) =>
    e.nodes.length
      ? ["warn", `${count(e.nodes.length, "node")} asked to give up ${e.nodes.length === 1 ? "its place" : "their places"}: ${nameAll(e.nodes, String)}${tail(e.reason)}.`]
      : ["plain", `Cycle ${e.cycle_id + 1} is called for, at the next checkpoint${tail(e.reason)}.`],
  CycleSettled: (e) =>
    e.first
      ? ["bad", `Cycle ${e.cycle_id} ended because of ${failureText(e.first)}. ${count(e.failures, "node")} failed.`]
      : ["plain", `Cycle ${e.cycle_id} ended because a node was lost or left, or an operator asked: no node is charged.`],
  NodeJoined: (e) => ["plain", `${e.node} joined${e.is_spare ? " as a spare" : ""}${e.domain ? `, in ${e.domain}` : ""}.`],
  NodesArrived: (e, nameOf) => [
    "plain",
    e.role === "standby"
      ? `${count(e.incarnations.length, "node")} standing by for any group: ${nameAll(e.incarnations, nameOf)}.`
      : `${count(e.incarnations.length, "node")} arrived in cycle ${e.cycle_id}: ${nameAll(e.incarnations, nameOf)}.`,
  ],
  NodesSilent: (e, nameOf) => {
    const silent = Object.keys(e.silent_s);
    return ["warn", `No beat for ${duration(Math.max(0, ...Object.values(e.silent_s)))}: ${nameAll(silent, nameOf)}.`];
  },
  NodesHeard: (e, nameOf) => ["good", `Beating again: ${nameAll(e.incarnations, nameOf)}.`],
  NodeFenced: (e) => [e.cause === "replaced" ? "warn" : "bad", `${e.node} ${FENCED[e.cause] ?? `was fenced, ${e.cause}`}${tail(e.reason)}.`],
  NodeFinished: (e) => ["good", `${e.node} finished: its workers ended well.`],
  NodeWent: (e) => [
    { failed: "warn", left: "warn", drained: "warn" }[e.outcome] ?? "plain",
    `${e.node} went, ${e.outcome}${tail(e.reason)}.`,
  ],
  NodeUnhealthy: (e) => ["bad", `${e.node} is not fit to train${tail(e.reason)}.`],
  NodeParked: (e) => [
    "warn",
    `${e.node} is parked for ${duration(e.for_s)}: it was lost ${count(e.losses, "time")} within ${duration(e.within_s)}.`,
  ],
  NodeUnparked: (e) => ["good", `${e.node} is not parked any more.`],
  UpdatesReported: (e) => [
    e.failed ? "bad" : e.retried ? "warn" : "routine",
    `${count(e.updates, "update")} of cycle ${e.cycle_id} on ${e.node} in ${duration(e.spent_s)}` +
      `${e.failed || e.retried ? `, ${e.failed} failed, ${e.retried} retried, ${duration(e.lost_s)} lost` : ""}` +
      `${e.told.length ? `: ${updateText(e.told.find((each) => !isPlainUpdate(each)) ?? e.told[0])}` : ""}.`,
  ],
  WorkersEnded: (e) => ["bad", `Workers failed on ${failureText(e.failure)}`],
  RankLate: (e) => ["warn", `Rank ${e.rank} on ${e.node} is late: ${e.text}.`],
  HangDenied: (e) => ["plain", `Rank ${e.rank} is late, and there is no hang: ${e.reason}.`],
  HangFound: (e) => ["bad", `Workers hang${e.step == null ? "" : ` at step ${e.step}`}: ${e.reason}. ${e.node ?? "No node"} is blamed.`],
  StateTold: () => ["plain", "Events before this are not kept here any more; the server sent the state as of now."],
};

export const EVENT_KINDS = Object.keys(SENTENCES);
export const GRAVE_MARKS = { bad: "✕", warn: "!", good: "✓", plain: "·", routine: "·" };

export function sentence(event, nameOf) {
  try {
    return SENTENCES[event.kind](event, nameOf);
  } catch {
    // An event of a later version than this page: shown as it is.
    return ["plain", JSON.stringify(event)];
  }
}
