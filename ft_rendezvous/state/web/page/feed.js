// The connection to the server: what is read when, and what happens when it is lost. Touches no element.
//
// Events say that something changed; the records are then read again, at most once a second and, where that takes
// long, for at most a tenth of the time. A lost connection is taken up again, later each time, up to every 15 s.

import { EVENT_KINDS } from "./words.js";

const API = new URL("api/ft/v1/", document.baseURI);
const READ_INTERVAL_MS = 1000;
const MAX_RETRY_DELAY_MS = 15_000;
const ANSWER_TIMEOUT_MS = 20_000;
const FIRST_EVENTS = 400; // How many old events are asked for.
const END_READ_DELAY_MS = 100;
const IDLE_READ_INTERVAL_MS = 5_000; // For changes without an event.

const NEEDS = { Looked: ["run"], CycleWaits: ["run", "cycles"], CauseCorrected: ["run", "cycles"], CyclePlaced: ["cycles"], UpdatesReported: ["run"] };
const ALL = ["run", "cycles", "nodes"];

export class Refused extends Error {
  constructor(status, said) {
    super(said.error ?? `the server answered ${status}`);
    this.status = status;
    this.next = said.next ?? "";
  }
}

export class Feed {
  // `tell` has runs(list), data({run, cycles, nodes}), events(list), ended(event), line(state).
  constructor(tell) {
    this.tell = tell;
    this.id = null;
    this.lastEvent = 0;
    this.offsetMs = 0; // The server's clock minus ours.
    this.etags = new Map();
    this.dirty = new Set();
    this.readEnd = 0;
    this.nodesPauseMs = READ_INTERVAL_MS;
    this.nodesEnd = 0;
    this.failures = 0;
    this.state = { name: "connecting" };
    this.asOfMs = null;
    this.source = null;
    this.timer = null;
    this.turn = 0; // Counts choices of a run: what an older one still receives is dropped.
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.hurry());
    setInterval(() => this.look(), READ_INTERVAL_MS);
  }

  nowMs() {
    return Date.now() + this.offsetMs;
  }

  get isOver() {
    return this.run?.end_time_ns != null;
  }

  // --- a run -------------------------------------------------------------------------------------

  start(id) {
    this.turn += 1;
    this.stop();
    this.id = id;
    this.run = null;
    this.hasProgress = false;
    this.lastEvent = 0;
    this.etags.clear();
    this.connect();
  }

  stop() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
    this.timer = null;
  }

  async connect() {
    const turn = this.turn;
    this.stop();
    try {
      const { value: runs } = await this.get("runs", true);
      if (turn !== this.turn) return;
      this.knownRuns = runs;
      this.tell.runs(runs);
      if (turn !== this.turn) return; // It has chosen a run.
      if (this.id == null || !runs.some((run) => run.id === this.id || run.name === this.id)) {
        // There is no run, or not this one: `tell.runs` has said so.
        this.become({ name: this.id == null ? "empty" : "unknown" });
        this.failures = 0;
        this.timer = setTimeout(() => this.connect(), this.id == null ? 2 * READ_INTERVAL_MS : IDLE_READ_INTERVAL_MS);
        return;
      }
      ALL.forEach((what) => this.dirty.add(what));
      await this.read(turn);
      if (turn === this.turn) this.follow(turn);
    } catch (error) {
      if (turn === this.turn) this.lose(error);
    }
  }

  follow(turn) {
    if (this.run.event_id < this.lastEvent) this.lastEvent = 0; // The server knows less than it did.
    const after = this.lastEvent || Math.max(0, this.run.event_id - FIRST_EVENTS);
    const source = new EventSource(new URL(`runs/${encodeURIComponent(this.id)}/events?after=${after}`, API));
    this.source = source;
    source.onopen = () => {
      this.failures = 0;
      this.heardMs = Date.now();
      this.become({ name: this.isOver ? "over" : "live" });
    };
    source.onerror = () => {
      // The browser would give up for good at the first answer that is an error.
      source.close();
      if (turn === this.turn && source === this.source) this.lose(new Error("the stream of events ended"));
    };
    for (const kind of EVENT_KINDS) source.addEventListener(kind, (message) => this.take(turn, kind, message));
    source.onmessage = (message) => this.take(turn, "", message);
  }

  take(turn, kind, message) {
    if (turn !== this.turn) return;
    this.heardMs = Date.now();
    const id = Number(message.lastEventId) || 0;
    this.lastEvent = Math.max(this.lastEvent, id);
    // The whole state may have megabytes, and the records are read anyway.
    const event = kind === "StateTold" ? { event_id: id, event: { kind } } : JSON.parse(message.data);
    this.tell.events([event]);
    if (id > (this.run?.event_id ?? 0) || kind === "StateTold") (NEEDS[kind] ?? ALL).forEach((what) => this.dirty.add(what));
    // Where progress is watched, every look changes the nodes.
    this.hasProgress ||= kind === "Looked" && Object.keys(event.event.progress ?? {}).length > 0;
    if (kind === "Looked" && this.hasProgress) this.dirty.add("nodes");
    if (event.ends_run_as && this.run && !this.isOver) {
      // The server ends soon after the run, maybe before it can be asked again: this much is known from the event.
      this.tell.ended(event);
      this.become({ name: "over" });
      // Not in a timer: a browser may hold back the timers of a hidden page for longer than the server stays.
      this.look();
    }
    if (this.isOver) this.lookSoon();
  }

  // The server stays for a second after the end, and few events follow.
  lookSoon() {
    this.soon ??= setTimeout(() => {
      this.soon = null;
      this.nodesPauseMs = Math.min(this.nodesPauseMs, END_READ_DELAY_MS);
      this.look();
    }, END_READ_DELAY_MS);
  }

  // Once a second: read what changed.
  look() {
    if (this.source == null || this.reading || (document.hidden && !this.isOver)) return;
    const now = Date.now();
    if (now - this.readEnd > IDLE_READ_INTERVAL_MS && !this.isOver) this.dirty.add("run");
    const isWaiting = this.run && (this.run.status !== "RUNNING" || this.run.groups?.some((each) => each.status === "WAITING"));
    if (isWaiting && !this.isOver && now - this.readEnd > 2 * READ_INTERVAL_MS) this.dirty.add("run");
    if (this.isOver && now - this.readEnd > IDLE_READ_INTERVAL_MS) this.dirty.add("runs");
    const due = [...this.dirty].filter((what) => what !== "nodes" || now - this.nodesEnd >= this.nodesPauseMs);
    if (due.length === 0) return;
    const turn = this.turn;
    this.read(turn).catch((error) => turn === this.turn && this.lose(error));
  }

  async read(turn) {
    const run = `runs/${encodeURIComponent(this.id)}`;
    const paths = { run, cycles: `${run}/cycles?ranks=0`, nodes: `${run}/nodes`, runs: "runs" };
    const wanted = [...this.dirty].filter((what) => what !== "nodes" || Date.now() - this.nodesEnd >= this.nodesPauseMs);
    this.reading = true;
    try {
      wanted.forEach((what) => this.dirty.delete(what));
      const found = {};
      const began = performance.now();
      await Promise.all(
        wanted.map(async (what) => {
          const answer = await this.get(paths[what]);
          if (what === "nodes") {
            this.nodesPauseMs = Math.max(READ_INTERVAL_MS, 10 * (performance.now() - began));
            this.nodesEnd = Date.now();
          }
          if (answer.isNew) found[what] = answer.value;
        }),
      );
      if (turn !== this.turn) return;
      if (found.runs) this.tell.runs((this.knownRuns = found.runs));
      if (found.run) this.run = found.run;
      this.asOfMs = this.nowMs();
      this.tell.data(found);
      if (this.state.name === "live" && this.isOver) this.become({ name: "over" });
    } catch (error) {
      wanted.forEach((what) => this.dirty.add(what));
      throw error;
    } finally {
      this.reading = false;
      this.readEnd = Date.now();
    }
  }

  async get(path, anew = false) {
    const etag = anew ? null : this.etags.get(path);
    const answer = await fetch(new URL(path, API), {
      cache: "no-store",
      credentials: "same-origin",
      headers: etag ? { "If-None-Match": etag } : {},
      signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
    });
    this.learnClock(answer);
    if (answer.status === 304) return { isNew: false };
    if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
    const value = await answer.json();
    if (answer.headers.has("ETag")) this.etags.set(path, answer.headers.get("ETag"));
    return { isNew: true, value };
  }

  learnClock(answer) {
    const said = Date.parse(answer.headers.get("Date") ?? "");
    // That header has whole seconds: a smaller difference means nothing.
    if (Number.isFinite(said)) this.offsetMs = Math.abs(said + 500 - Date.now()) > 2500 ? said + 500 - Date.now() : 0;
  }

  // --- a lost connection -------------------------------------------------------------------------

  lose(error) {
    this.stop();
    if (this.isOver && !(error instanceof Refused)) {
      // The server ends with its run. Another run may come to the same address.
      this.become({ name: "over", isGone: true });
      this.timer = setTimeout(() => this.connect(), IDLE_READ_INTERVAL_MS);
      return;
    }
    const sinceMs = this.state.name === "lost" ? this.state.sinceMs : Date.now();
    const backoffMs = Math.min(MAX_RETRY_DELAY_MS, 500 * 2 ** this.failures) * (0.75 + Math.random() / 2);
    this.failures += 1;
    this.become({ name: "lost", sinceMs, asOfMs: this.asOfMs, error, retryMs: Date.now() + backoffMs });
    this.timer = setTimeout(() => this.connect(), backoffMs);
  }

  hurry() {
    if (this.source == null && this.timer != null) this.connect();
  }

  become(state) {
    this.state = state;
    this.tell.line(state);
  }
}
