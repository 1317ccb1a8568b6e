// Updates that workers report: all in one line, and the newest; those that failed or were retried stand out.

import { at, make, say, show } from "./dom.js";
import { clock, count, duration, failedText, fullTime, isPlainUpdate, ms } from "./words.js";

const ROWS = 12;

export class UpdatesView {
  clear() {
    this.update(null, []);
  }

  update(totals, recent) {
    show(at("updates"), Boolean(totals?.updates));
    at("main").dataset.updates = String(Boolean(totals?.updates));
    const signature = JSON.stringify([totals, recent]);
    if (signature === this.shown || !totals) return;
    this.shown = signature;
    say(at("updates-title"), `Updates (${totals.updates.toLocaleString("en")})`);
    const parts = [
      `${duration(totals.spent_s)} in updates`,
      totals.lost_s ? `${duration(totals.lost_s)} lost to failed attempts` : "",
      totals.failed ? `${totals.failed.toLocaleString("en")} failed` : "",
      totals.retried ? `${totals.retried.toLocaleString("en")} retried` : "",
    ];
    say(at("updates-sums"), parts.filter(Boolean).join(" · "));
    at("update-list").replaceChildren(...this.choose(recent).map((each) => this.rowOf(each)));
  }

  // The newest first. Plain ones, of which there are many, make room for the others.
  choose(recent) {
    const newest = [...recent].reverse();
    const troubled = newest.filter((each) => !isPlainUpdate(each));
    const plain = newest.filter(isPlainUpdate);
    return [...troubled, ...plain].slice(0, ROWS).sort((a, b) => b.time_ns - a.time_ns);
  }

  rowOf(update) {
    const grave = update.outcome === "failed" ? "bad" : isPlainUpdate(update) ? "good" : "warn";
    const facts = [
      `${update.updated} of ${count(update.parties, "party", "parties")}`,
      duration(update.duration_s),
      update.attempts > 1 ? `${update.attempts} attempts` : "",
      update.lost_s ? `${duration(update.lost_s)} lost` : "",
      `cycle ${update.cycle_id}`,
    ];
    const steps = update.steps.map(([name, seconds]) => `${name} ${duration(seconds)}`).join(", ");
    return make(
      "li",
      { class: "update", title: update.node, data: { grave, version: update.version } },
      make("time", { title: fullTime(ms(update.time_ns)) }, clock(ms(update.time_ns))),
      make("span", { class: "mark", "aria-hidden": "true" }, { bad: "✕", warn: "!", good: "✓" }[grave]),
      make("span", { class: "outcome" }, `version ${update.version} ${update.outcome}`),
      make("span", { class: "facts" }, facts.filter(Boolean).join(" · ")),
      make("span", { class: "update-detail" }, [steps, update.failed_count ? `failed: ${failedText(update)}` : "", update.reason].filter(Boolean).join("; ")),
    );
  }
}
