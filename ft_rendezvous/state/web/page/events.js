// The newest events, in words, newest first.

import { at, make, say } from "./dom.js";
import { GRAVE_MARKS, clock, count, fullTime, ms, sentence } from "./words.js";

const KEPT = 2000;
const ROWS = 150;
const RENDER_DELAY_MS = 250;

export class EventsView {
  constructor() {
    this.events = []; // Oldest first.
    this.names = new Map(); // Of incarnations that an event named.
    this.nameOf = (incarnation) => this.names.get(incarnation) ?? incarnation;
    at("event-filter").addEventListener("input", () => this.renderAll());
    at("event-source").addEventListener("change", () => this.renderAll());
  }

  clear() {
    this.events = [];
    this.renderAll();
  }

  learnNames(nodes) {
    for (const node of nodes) this.names.set(node.incarnation, node.name);
  }

  take(events) {
    for (const each of events) {
      if (each.event.kind === "NodeJoined") this.names.set(each.event.incarnation, each.event.node);
      this.events.push({ id: each.event_id, timeMs: each.timestamp_ns == null ? null : ms(each.timestamp_ns), source: each.source_type ?? "run", event: each.event });
    }
    if (this.events.length > KEPT + 500) this.events.splice(0, this.events.length - KEPT);
    // A burst is drawn once.
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.render();
    }, RENDER_DELAY_MS);
  }

  // Sentences are made when they are first needed: by then most names are known.
  sentenceOf(each) {
    if (!each.sentence) {
      const [grave, text] = sentence(each.event, this.nameOf);
      each.sentence = { grave, text };
    }
    return each.sentence;
  }

  isWanted(each, source, words) {
    const { grave, text } = this.sentenceOf(each);
    if (source === "trouble" && grave !== "bad" && grave !== "warn") return false;
    if (source !== "everything" && grave === "routine") return false;
    if (["run", "cycle", "node"].includes(source) && each.source !== source) return false;
    const lower = text.toLowerCase();
    return words.every((word) => lower.includes(word));
  }

  renderAll() {
    at("event-list").replaceChildren();
    this.drawn = null;
    this.render();
  }

  // Only new rows are put on top, so that the rows that a user reads or has selected stay as they are.
  render() {
    const source = at("event-source").value;
    const words = at("event-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const list = at("event-list");
    const isRead = list.scrollTop > 0;
    const heightBefore = list.scrollHeight;
    const rows = [];
    for (let i = this.events.length - 1; i >= 0 && rows.length < ROWS; i -= 1) {
      const each = this.events[i];
      if (each === this.drawn) break;
      if (this.isWanted(each, source, words)) rows.push(this.rowOf(each));
    }
    list.prepend(...rows);
    while (list.children.length > ROWS) list.lastElementChild.remove();
    if (isRead) list.scrollTop += list.scrollHeight - heightBefore;
    this.drawn = this.events.at(-1);
    const shown = list.children.length;
    say(at("event-more"), shown === 0 ? (this.events.length ? "No event has these words." : "No event yet.") : shown >= ROWS ? `The newest ${count(shown, "event")}; all are in the export log.` : "");
  }

  rowOf(each) {
    const { grave, text } = this.sentenceOf(each);
    const when = each.timeMs == null ? "" : clock(each.timeMs);
    return make(
      "li",
      { class: "event", data: { grave, kind: each.event.kind, id: each.id } },
      make("time", { title: each.timeMs == null ? "" : `event ${each.id}, ${fullTime(each.timeMs)}` }, when),
      make("span", { class: "mark", "aria-hidden": "true" }, GRAVE_MARKS[grave]),
      make("span", { class: "text" }, text),
    );
  }
}
