// The head of the page: how the run is, at one glance.

import { at, make, say, show } from "./dom.js";
import { RUN_HINTS, RUN_MARKS, causeText, clock, count, duration, fullTime, ms, percent } from "./words.js";

const TONES = {
  INITIALIZING: "wait", SCHEDULING: "wait", RUNNING: "run", RESTARTING: "warn", RESIZING: "warn",
  FINISHED: "good", ERRORED: "bad", ABORTED: "stop",
};

const live = (run, role) => {
  const by = run.nodes[role] ?? {};
  return (by.ALIVE ?? 0) + (by.SUSPECT ?? 0);
};

export class StatusView {
  constructor(feed) {
    this.feed = feed;
  }

  update(run, cycles) {
    this.run = run;
    this.readMs = this.feed.nowMs();
    this.lastSealed = cycles?.findLast((cycle) => cycle.seal_time_ns != null) ?? null;
    const isOver = this.feed.isOver;
    const word = run.verdict ? run.verdict.kind.toUpperCase() : run.status;
    say(at("run-name"), run.name);
    at("run-name").title = `run ${run.id}`;
    document.title = `${RUN_MARKS[run.status] ?? ""} ${word} · ${run.name}`;
    at("status").dataset.status = run.status;
    at("status").dataset.tone = TONES[run.status] ?? "wait";
    say(at("status-mark"), RUN_MARKS[run.status] ?? "·");
    say(at("status-word"), word);
    const detail = run.status_detail || run.verdict?.reason || (isOver ? "" : RUN_HINTS[run.status]);
    const ended = run.status === "FINISHED" ? "the run is over: training ended well" : isOver ? "the run is over" : "";
    const hint = run.verdict?.is_retryable ? "another start may do better" : "";
    say(at("status-detail"), [detail, ended, hint].filter(Boolean).join(" — "));
    at("status-detail").title = detail ?? "";
    this.showNodes(run, isOver);
    say(at("age-more"), `${count(run.cycle_id, "cycle")}, since ${clock(ms(run.start_time_ns))}`);
    at("age-more").title = fullTime(ms(run.start_time_ns));
    this.tick();
    const versions = Object.entries(run.versions).map(([name, version]) => `${name} ${version}`);
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    say(at("foot"), [`run ${run.id}`, `store on ${run.store_host}`, ...versions, `times in ${zone}`].join(" · "));
  }

  showNodes(run, isOver) {
    const active = live(run, "active") + live(run, "finished");
    const arrived = live(run, "arrived");
    const isForming = !isOver && run.status !== "RUNNING";
    const of = run.wanted ? `${run.wanted} wanted` : "";
    if (isOver) {
      say(at("training-label"), "trained last");
      const groups = (run.groups ?? []).filter((each) => each.status !== "DISSOLVED");
      const last = groups.length ? groups.reduce((sum, each) => sum + each.wanted, 0) : this.lastSealed?.active;
      say(at("training"), `${last ?? 0}`);
      say(at("training-more"), of);
    } else if (isForming) {
      say(at("training-label"), "nodes train");
      say(at("training"), "0");
      say(at("training-more"), `${arrived} arrived of ${of}`);
    } else {
      say(at("training-label"), active === 1 ? "node trains" : "nodes train");
      say(at("training"), `${active.toLocaleString("en")}`);
      say(at("training-more"), `of ${of}${active >= run.wanted ? "" : " — too few"}`);
    }
    const standby = live(run, "standby");
    const hot = live(run, "hot spare");
    say(at("spares"), `${standby + hot}`);
    say(at("spares-more"), standby + hot ? `${standby} standby, ${hot} hot` : isOver ? "" : "none");
  }

  // Time lost and time trained until then, if nothing has happened since the run was read.
  sumsAt(timeMs) {
    const { run } = this;
    const passed_s = Math.max(0, timeMs - this.readMs) / 1000;
    const isBroken = run.status === "RESTARTING" || run.status === "RESIZING";
    // Of N groups, each has the N-th part of the run's time; one that has finished counts as one that trains.
    const waiting = (run.groups ?? []).filter((each) => each.status === "WAITING").length;
    const others = (run.groups ?? []).filter((each) => ["RUNNING", "FINISHED"].includes(each.status)).length;
    const share = waiting + others ? waiting / (waiting + others) : Number(isBroken);
    const isGoing = isBroken || run.status === "RUNNING";
    return {
      lost_s: run.lost_s + (isGoing ? share * passed_s : 0),
      trained_s: run.trained_s + (isGoing ? (1 - share) * passed_s : 0),
    };
  }

  // Every second: what grows while nothing happens.
  tick() {
    const { run } = this;
    if (!run) return;
    const isOver = run.end_time_ns != null;
    const now = this.feed.nowMs();
    const endMs = isOver ? ms(run.end_time_ns) : now;
    say(at("age-label"), isOver ? "ran for" : "runs for");
    say(at("age"), duration((endMs - ms(run.start_time_ns)) / 1000));
    // Nothing is known of what happens while the connection is lost.
    const isKnown = !isOver && this.feed.state.name === "live";
    const { lost_s, trained_s } = this.sumsAt(isKnown ? now : this.readMs);
    say(at("lost"), duration(lost_s));
    say(at("lost-more"), lost_s || trained_s ? `${percent(lost_s, lost_s + trained_s)} of ${duration(lost_s + trained_s)}` : "");
    this.showCauses(run);
  }

  showCauses(run) {
    const causes = Object.entries(run.lost).sort(([, a], [, b]) => b.seconds - a.seconds);
    show(at("causes"), causes.length > 0);
    const signature = JSON.stringify(causes);
    if (signature === this.causes) return;
    this.causes = signature;
    at("share").replaceChildren(
      ...causes.map(([cause, { seconds }]) => {
        const part = make("i", { data: { cause } });
        part.style.flexGrow = String(Math.max(seconds, run.lost_s / 200));
        return part;
      }),
    );
    at("cause-list").replaceChildren(
      ...causes.map(([cause, { times, seconds }]) =>
        make("li", {}, make("i", { data: { cause } }), make("b", {}, duration(seconds)), ` ${causeText(cause)}, ${times}×`),
      ),
    );
  }
}
