// Nodes drawn as a grid by domain, on one canvas that is as large as what can be seen of it: ten thousand nodes cost
// as much as those in sight. Knows where each node is; what a node means is in `nodes.js`.

import { KINDS } from "./words.js";

const GAP = 2;
const LABEL = 18;
const BLOCK_GAP = 12;
const SIZES = [
  { w: 7, h: 7 },
  { w: 10, h: 10 },
  { w: 17, h: 17 },
  { w: 32, h: 26 },
  { w: 74, h: 44 },
];
const sizeFor = (count) => (count <= 60 ? 4 : count <= 400 ? 3 : count <= 2000 ? 2 : 1);

export class Grid {
  // `on` has hover(node, x, y), pick(node), move(node).
  constructor(viewport, spacer, canvas, on) {
    Object.assign(this, { viewport, spacer, canvas, on });
    this.pen = canvas.getContext("2d");
    this.blocks = [];
    this.cells = []; // In reading order.
    this.placeOf = new Map(); // Incarnation to index in cells.
    this.zoom = 0;
    this.picked = null;
    this.cursor = null;
    this.lit = null; // A set of incarnations; the others are dimmed.
    viewport.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.layOut()).observe(viewport);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.readColours());
    canvas.addEventListener("pointermove", (e) => this.hover(e));
    canvas.addEventListener("pointerleave", () => on.hover(null));
    canvas.addEventListener("click", (e) => this.click(e));
    canvas.addEventListener("keydown", (e) => this.key(e));
    canvas.addEventListener("focus", () => this.draw());
    canvas.addEventListener("blur", () => this.draw());
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colours = Object.fromEntries(
      ["text", "dim", "panel", "ground", "edge", "focus", ...Object.keys(KINDS).map((kind) => `k-${kind.replace(" ", "-")}`)].map((name) => [name, read(name)]),
    );
    this.font = getComputedStyle(document.body).fontFamily;
    this.draw();
  }

  colour(kind) {
    return this.colours[`k-${kind.replace(" ", "-")}`];
  }

  // `domains` is a list of {name, note, nodes: [{node, kind, rank, infra}]}, in the order to draw.
  show(domains) {
    this.domains = domains;
    this.layOut();
  }

  get level() {
    const count = (this.domains ?? []).reduce((sum, domain) => sum + domain.nodes.length, 0);
    return Math.min(SIZES.length - 1, Math.max(0, sizeFor(count) + this.zoom));
  }

  layOut() {
    const width = this.viewport.clientWidth;
    if (!width || !this.domains) return;
    const columns = this.choose(width);
    const stepX = this.size.w + GAP;
    const stepY = this.size.h + GAP;
    this.blocks = [];
    this.cells = [];
    this.placeOf = new Map();
    let x = 0;
    let y = 0;
    let tallest = 0;
    for (const domain of this.domains) {
      const n = domain.nodes.length;
      const rows = Math.ceil(n / columns);
      const blockWidth = columns * stepX - GAP;
      const blockHeight = LABEL + rows * stepY - GAP;
      if (x > 0 && x + blockWidth > width) {
        x = 0;
        y += tallest + BLOCK_GAP;
        tallest = 0;
      }
      const block = { domain, x, y, columns, width: blockWidth, height: blockHeight, first: this.cells.length };
      domain.nodes.forEach((cell, i) => {
        const placed = { ...cell, x: x + (i % columns) * stepX, y: y + LABEL + Math.floor(i / columns) * stepY };
        this.placeOf.set(cell.node.incarnation, this.cells.length);
        this.cells.push(placed);
      });
      this.blocks.push(block);
      tallest = Math.max(tallest, blockHeight);
      x += blockWidth + BLOCK_GAP;
    }
    this.height = y + tallest + 4;
    this.spacer.style.height = `${this.height}px`;
    this.draw();
  }

  // The size of a cell, and how many of them are side by side in a domain: blocks of one width, which fill the line.
  choose(width) {
    const { w, h } = SIZES[this.level];
    this.size = { w, h };
    const most = Math.max(1, Math.floor((width + GAP) / (w + GAP)));
    if (this.domains.length <= 1) return most;
    const sizes = this.domains.map((domain) => domain.nodes.length).sort((a, b) => a - b);
    const typical = sizes[Math.floor(sizes.length / 2)];
    const least = Math.min(most, Math.max(Math.ceil(84 / (w + GAP)), Math.ceil(Math.sqrt((typical * 2 * (h + GAP)) / (w + GAP)))));
    // The first of the near numbers that leaves no last line half empty, or nearly none.
    const waste = (columns) => columns * Math.ceil(typical / columns) - typical;
    let columns = least;
    for (let more = least; more <= Math.min(most, least * 1.6 + 1); more += 1) if (waste(more) < waste(columns)) columns = more;
    const blocks = Math.floor((width + BLOCK_GAP) / (columns * (w + GAP) - GAP + BLOCK_GAP));
    if (blocks >= 1 && this.domains.length >= blocks) {
      const wider = Math.floor(((width + BLOCK_GAP) / blocks - BLOCK_GAP + GAP) / columns) - GAP;
      this.size = { w: Math.min(wider, Math.round(w * 1.6)), h };
      if (w === h) this.size.h = this.size.w;
    }
    return columns;
  }

  // --- drawing -------------------------------------------------------------------------------------

  draw() {
    if (this.isAsked || !this.size) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      this.drawNow();
    });
  }

  drawNow() {
    const began = performance.now();
    const { pen, canvas, viewport } = this;
    const width = viewport.clientWidth;
    const height = viewport.clientHeight;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const top = viewport.scrollTop;
    pen.setTransform(ratio, 0, 0, ratio, 0, -top * ratio);
    pen.clearRect(0, top, width, height);
    pen.textBaseline = "middle";
    for (let b = 0; b < this.blocks.length; b += 1) {
      const block = this.blocks[b];
      if (block.y + block.height < top || block.y > top + height) continue;
      this.drawLabel(block);
      const end = b + 1 < this.blocks.length ? this.blocks[b + 1].first : this.cells.length;
      for (let i = block.first; i < end; i += 1) {
        const cell = this.cells[i];
        if (cell.y + this.size.h >= top && cell.y <= top + height) this.drawCell(cell);
      }
    }
    this.drawMark(this.picked, this.colours.text, 2);
    if (document.activeElement === canvas && this.cursor) this.drawMark(this.cursor, this.colours.focus, 3);
    canvas.dataset.cells = this.cells.length;
    canvas.dataset.drawMs = (performance.now() - began).toFixed(1);
  }

  drawLabel({ domain, x, y, width }) {
    const { pen, colours } = this;
    pen.font = `12px ${this.font}`;
    pen.textAlign = "right";
    pen.fillStyle = domain.isTroubled ? colours.text : colours.dim;
    const noteWidth = pen.measureText(domain.note).width;
    pen.fillText(domain.note, x + width, y + LABEL / 2 - 2);
    pen.textAlign = "left";
    pen.fillStyle = colours.text;
    pen.fillText(this.fit(domain.name, width - noteWidth - 6), x, y + LABEL / 2 - 2);
  }

  fit(text, width) {
    if (this.pen.measureText(text).width <= width) return text;
    let n = Math.max(1, Math.floor((text.length * width) / this.pen.measureText(text).width) - 1);
    while (n > 1 && this.pen.measureText(`${text.slice(0, n)}…`).width > width) n -= 1;
    return `${text.slice(0, n)}…`;
  }

  // The shape tells the kind without its colour: full, hollow, round, half, dot, cross.
  drawCell(cell) {
    const { pen } = this;
    const { x, y, kind } = cell;
    const { w, h } = this.size;
    pen.globalAlpha = this.isLit(cell) ? 1 : 0.16;
    pen.fillStyle = pen.strokeStyle = this.colour(kind);
    const line = h > 20 ? 2.5 : h > 8 ? 1.6 : 1.2;
    pen.lineWidth = line;
    const isLarge = h >= 17;
    switch (kind) {
      case "active":
        pen.fillRect(x, y, w, h);
        break;
      case "standby":
        pen.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
        break;
      case "hot spare":
        pen.beginPath();
        pen.roundRect(x + line / 2, y + line / 2, w - line, h - line, h / 2);
        pen.stroke();
        break;
      case "arrived":
        pen.globalAlpha *= isLarge ? 0.35 : 1;
        pen.fillRect(x, y + h / 2, w, h / 2);
        pen.globalAlpha /= isLarge ? 0.35 : 1;
        pen.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
        break;
      case "awaited":
        pen.setLineDash([3, 2]);
        pen.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
        pen.setLineDash([]);
        if (!isLarge) pen.fillRect(x + w / 2 - 1.5, y + h / 2 - 1.5, 3, 3);
        break;
      case "suspect":
        pen.beginPath();
        pen.moveTo(x + w / 2, y);
        pen.lineTo(x + w, y + h);
        pen.lineTo(x, y + h);
        pen.closePath();
        if (isLarge) pen.fillRect(x, y, w, h);
        else pen.fill();
        break;
      case "dead":
      case "quarantined":
        pen.globalAlpha *= 0.28;
        pen.fillRect(x, y, w, h);
        pen.globalAlpha /= 0.28;
        if (isLarge) pen.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
        else {
          pen.beginPath();
          pen.moveTo(x + 1, y + 1);
          pen.lineTo(x + w - 1, y + h - 1);
          pen.moveTo(x + w - 1, y + 1);
          pen.lineTo(x + 1, y + h - 1);
          pen.stroke();
        }
        break;
      default: // Finished, drained, left.
        pen.globalAlpha *= 0.35;
        pen.fillRect(x, y, w, h);
        pen.globalAlpha /= 0.35;
    }
    if (isLarge) this.drawText(cell);
    if (isLarge && cell.node.failure_count > 0) this.drawCorner(cell);
    pen.globalAlpha = 1;
  }

  drawText({ x, y, kind, title, sub }) {
    const { pen } = this;
    const { w, h } = this.size;
    const letter = KINDS[kind].letter;
    pen.textAlign = "center";
    pen.fillStyle = kind === "active" || kind === "suspect" ? this.colours.ground : this.colours.text;
    if (h >= 40) {
      pen.font = `700 15px ${this.font}`;
      pen.fillText(this.fit(`${letter} ${title}`, w - 8), x + w / 2, y + h * 0.36);
      pen.font = `11px ${this.font}`;
      pen.fillText(this.fit(sub, w - 6), x + w / 2, y + h * 0.74);
    } else {
      pen.font = `600 ${h >= 24 ? 13 : 11}px ${this.font}`;
      pen.fillText(kind === "active" && h >= 24 && /^\d+$/.test(title) ? title : letter, x + w / 2, y + h / 2 + 0.5);
    }
  }

  // Its workers have failed before.
  drawCorner({ x, y }) {
    const { pen } = this;
    const size = Math.min(11, this.size.h * 0.4);
    pen.fillStyle = this.colours["k-dead"];
    pen.strokeStyle = this.colours.panel;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x + this.size.w, y);
    pen.lineTo(x + this.size.w - size, y);
    pen.lineTo(x + this.size.w, y + size);
    pen.closePath();
    pen.fill();
    pen.stroke();
  }

  isLit(cell) {
    return this.lit === null || this.lit.has(cell.node.incarnation);
  }

  drawMark(incarnation, colour, width) {
    const index = this.placeOf.get(incarnation);
    if (index === undefined) return;
    const { x, y } = this.cells[index];
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = width;
    this.pen.strokeRect(x - 1, y - 1, this.size.w + 2, this.size.h + 2);
  }

  // --- pointing ------------------------------------------------------------------------------------

  // What is under a point of the canvas: {cell} or {block} or neither.
  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top + this.viewport.scrollTop;
    const block = this.blocks.find((each) => x >= each.x && x < each.x + each.width + GAP && y >= each.y && y < each.y + each.height + GAP);
    if (!block) return {};
    if (y < block.y + LABEL) return { block };
    const column = Math.floor((x - block.x) / (this.size.w + GAP));
    const row = Math.floor((y - block.y - LABEL) / (this.size.h + GAP));
    const inside = row * block.columns + column;
    return inside < block.domain.nodes.length && column < block.columns ? { cell: this.cells[block.first + inside] } : {};
  }

  hover(event) {
    const { cell, block } = this.find(event);
    this.canvas.style.cursor = cell ? "pointer" : "";
    this.on.hover(cell?.node ?? null, event.clientX, event.clientY, block?.domain);
  }

  click(event) {
    const { cell } = this.find(event);
    if (!cell) return;
    this.cursor = cell.node.incarnation;
    this.on.pick(cell.node);
  }

  key(event) {
    if (!this.cells.length) return;
    const index = this.placeOf.get(this.cursor) ?? this.placeOf.get(this.picked) ?? -1;
    const cell = this.cells[index];
    let next = null;
    if (event.key === "ArrowRight") next = index + 1;
    else if (event.key === "ArrowLeft") next = index - 1;
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = this.cells.length - 1;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") next = cell ? this.beside(cell, event.key === "ArrowDown" ? 1 : -1) : 0;
    else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (cell) this.on.pick(cell.node);
      return;
    } else return;
    event.preventDefault();
    next = Math.min(this.cells.length - 1, Math.max(0, next));
    this.cursor = this.cells[next].node.incarnation;
    this.reveal(this.cursor);
    this.on.move(this.cells[next].node);
    this.draw();
  }

  // The nearest cell in the next line of cells, up or down.
  beside(cell, direction) {
    let best = this.placeOf.get(cell.node.incarnation);
    let least = Infinity;
    this.cells.forEach((other, i) => {
      const dy = (other.y - cell.y) * direction;
      if (dy <= 0) return;
      const distance = dy * 1000 + Math.abs(other.x - cell.x);
      if (distance < least) [least, best] = [distance, i];
    });
    return best;
  }

  reveal(incarnation) {
    const index = this.placeOf.get(incarnation);
    if (index === undefined) return;
    const { y } = this.cells[index];
    const { viewport } = this;
    if (y < viewport.scrollTop + LABEL) viewport.scrollTop = y - LABEL - 8;
    else if (y + this.size.h > viewport.scrollTop + viewport.clientHeight) viewport.scrollTop = y + this.size.h + 8 - viewport.clientHeight;
    this.draw();
  }
}
