// The batch of each step as a strip chart: one column a step, one cell a request, prefill above and
// decode below, each on its own scale. Draws; decides nothing.

import {Surface, cursor, duration, el, hatch, int, niceMax, panel, plural, setText, slotName}
  from './engine-dom.js';

const MAX_COLUMNS = 120;
const MIN_COLUMN = 6; // CSS pixels: below it nobody can point at a column
const GUTTER = 54;
const TABLE_ROWS = 10;
const LESSON = 'Each column is one step of the engine: one pass of the model over a batch put ' +
  'together anew each time (continuous batching), so a request joins or leaves between two steps ' +
  'instead of waiting for the others. A long prompt enters in pieces within the token budget ' +
  '(chunked prefill, striped): requests that are already answering get their one token (decode, ' +
  'plain) in the same steps.';

export class BatchPanel {
  constructor({model, palette, view, redraw}) {
    this._model = model;
    this._palette = palette;
    this._view = view;
    this._step = -1; // number of the step looked at
    this._idleText = '';
    const {root, head, body} = panel('batch', 'Batch of each step', LESSON);
    this.root = root;
    this._legend = el('p', {class: 'e-legend'},
      el('span', {class: 'e-key e-key-prefill', 'aria-hidden': 'true'}), 'prefill',
      el('span', {class: 'e-key e-key-decode', 'aria-hidden': 'true'}), 'decode',
      el('span', {class: 'e-muted', text: 'one colour a request'}));
    head.append(this._legend);
    const canvas = el('canvas', {class: 'e-chart e-chart-batch'});
    this._readout = el('p', {class: 'e-readout', id: 'engine-step'});
    this._table = new StepTable(model);
    body.append(canvas, this._readout, this._table.root);
    this._canvas = canvas;
    this._surface = new Surface(canvas, () => redraw('steps'));
    cursor(canvas, {
      label: 'Steps, oldest to newest', size: () => this._shown().length, rowStep: () => 1,
      at: (x) => this._columnAt(x), current: () => this._index(),
      choose: (index) => {
        const steps = this._shown();
        this._step = index >= 0 && steps[index] ? steps[index].n : -1;
        redraw('steps');
      }});
  }

  _columns() {
    return Math.max(20, Math.min(MAX_COLUMNS,
      Math.floor((this._surface.width - GUTTER) / MIN_COLUMN)));
  }

  _shown() {
    return this._model.steps.slice(-this._columns());
  }

  _index() {
    return this._step < 0 ? -1 : this._shown().findIndex((step) => step.n === this._step);
  }

  _columnAt(x) {
    const columns = this._columns();
    const pitch = (this._surface.width - GUTTER) / columns;
    const index = Math.floor((x - GUTTER) / pitch) - (columns - this._shown().length);
    return index >= 0 && index < this._shown().length ? index : -1;
  }

  update(changed) {
    if (!changed.has('steps') && !changed.has('select') && !changed.has('theme')) return;
    this._draw();
    this._tell();
    this._table.update();
  }

  _tell() {
    const steps = this._shown();
    const index = this._index();
    const step = index >= 0 ? steps[index] : null;
    const text = step ? describe(step) : steps.length
      ? `Newest: ${describe(steps[steps.length - 1])}` : 'No step yet: the engine is idle.';
    setText(this._readout, text);
    this._readout.classList.toggle('e-active', Boolean(step));
    const canvas = this._canvas;
    canvas.setAttribute('aria-valuemin', String(steps.length ? steps[0].n : 0));
    canvas.setAttribute('aria-valuemax', String(steps.length ? steps[steps.length - 1].n : 0));
    const told = step || steps[steps.length - 1];
    canvas.setAttribute('aria-valuenow', String(told ? told.n : 0));
    // a screen reader hears what was chosen, not every new step
    if (step || document.activeElement !== canvas) canvas.setAttribute('aria-valuetext', text);
  }

  _draw() {
    const context = this._surface.begin();
    if (!context) return;
    const steps = this._shown();
    const {width, height} = this._surface;
    const split = Math.round(height * 0.56);
    const budget = this._model.hello ? this._model.hello.max_num_batched_tokens : 0;
    const most = (kind) => steps.reduce((found, step) => Math.max(found, step[kind]), 0);
    const prefill = {kind: 'prefill', top: 8, base: split - 4,
      max: prefillScale(most('prefill'), budget)};
    const decode = {kind: 'decode', top: split + 12, base: height - 4,
      max: niceMax(most('decode'), 4)};
    this._axis(context, prefill, 'prefill', budget);
    this._axis(context, decode, 'decode', 0);
    const columns = this._columns();
    const pitch = (width - GUTTER) / columns;
    const from = columns - steps.length;
    const stripes = hatch(context, this._palette.get('surface'));
    const index = this._index();
    if (index >= 0) {
      context.fillStyle = this._palette.get('cursor');
      context.fillRect(GUTTER + (from + index) * pitch, 0, pitch, height);
    }
    steps.forEach((step, i) => {
      const x = GUTTER + (from + i) * pitch;
      if (i > 0 && (step.idle || step.skipped)) this._gap(context, x, height, step);
      const box = {x: x + 0.5, width: Math.max(1, pitch - 1)};
      this._stack(context, step, prefill, box, stripes);
      this._stack(context, step, decode, box, null);
    });
  }

  _axis(context, lane, label, budget) {
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = this._palette.get('muted');
    context.strokeStyle = this._palette.get('line');
    context.lineWidth = 1;
    const {width} = this._surface;
    for (const y of [lane.top, lane.base]) {
      context.beginPath();
      context.moveTo(GUTTER, Math.round(y) + 0.5);
      context.lineTo(width, Math.round(y) + 0.5);
      context.stroke();
    }
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.fillText(int(lane.max), GUTTER - 6, lane.top + 4);
    context.fillText('0', GUTTER - 6, lane.base - 3);
    context.fillText(label, GUTTER - 6, (lane.top + lane.base) / 2);
    if (budget && budget === lane.max) {
      context.textAlign = 'left';
      context.fillText('budget of a step', GUTTER + 4, lane.top + 9);
    }
  }

  _gap(context, x, height, step) {
    context.strokeStyle = this._palette.get(step.skipped ? 'warn' : 'muted');
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 0);
    context.lineTo(Math.round(x) + 0.5, height);
    context.stroke();
    context.setLineDash([]);
  }

  _stack(context, step, lane, box, stripes) {
    let y = lane.base;
    const scale = (lane.base - lane.top) / lane.max;
    const chosen = this._view.selectedKey();
    for (const cell of step.cells) {
      const tokens = cell[lane.kind];
      if (!tokens) continue;
      const tall = tokens * scale;
      context.globalAlpha = chosen && cell.key !== chosen ? 0.35 : 1;
      context.fillStyle = this._palette.slot(cell.slot);
      // a hair between cells where there is room for one
      const drawn = tall > 3 ? tall - 1 : Math.max(tall, 0.5);
      context.fillRect(box.x, y - drawn, box.width, drawn);
      if (stripes) {
        context.fillStyle = stripes;
        context.globalAlpha *= 0.55;
        context.fillRect(box.x, y - drawn, box.width, drawn);
      }
      y -= tall;
    }
    context.globalAlpha = 1;
  }

  close() {
    this._surface.close();
  }
}

/** The prefill lane's top: the step's whole budget as soon as a good part of it is used. */
function prefillScale(most, budget) {
  return most > budget / 4 && most <= budget ? budget : niceMax(most, 16);
}

function describe(step) {
  const parts = [`step ${int(step.n)}`, duration(step.dt),
    `${plural(step.prefill + step.decode, 'token')} (${int(step.prefill)} prefill, ` +
    `${int(step.decode)} decode)`, `${plural(step.cells.length, 'request')} in the batch`];
  if (step.waiting) parts.push(`${int(step.waiting)} waiting`);
  if (step.preempted) parts.push(`${int(step.preempted)} preempted`);
  if (step.skipped) parts.push(`${plural(step.skipped, 'step')} before it not seen`);
  if (step.idle) parts.push(`${duration(step.idle)} idle before it`);
  return parts.join(' · ');
}

/** The newest steps as a table, made only while it is open. */
class StepTable {
  constructor(model) {
    this._model = model;
    const names = ['Step', 'Time', 'Prefill', 'Decode', 'Requests', 'Waiting'];
    this._rows = el('tbody');
    this._newest = -1;
    this.root = el('details', {class: 'e-why', on: {toggle: () => this.update()}},
      el('summary', {text: 'The last steps as a table'}),
      el('div', {class: 'e-scroll', tabindex: '0', role: 'region', 'aria-label': 'Last steps'},
        el('table', {class: 'e-table'},
          el('caption', {class: 'unseen', text: 'The last ten steps, newest first'}),
          el('thead', {}, el('tr', {}, ...names.map((text) => el('th', {scope: 'col', text})))),
          this._rows)));
  }

  update() {
    const steps = this._model.steps;
    const newest = steps.length ? steps[steps.length - 1].n : -1;
    if (!this.root.open || newest === this._newest) return;
    this._newest = newest;
    this._rows.replaceChildren(...steps.slice(-TABLE_ROWS).reverse().map((step) => el('tr', {},
      el('th', {scope: 'row', text: int(step.n)}),
      ...[duration(step.dt), int(step.prefill), int(step.decode), int(step.cells.length),
        int(step.waiting)].map((text) => el('td', {text})))));
  }
}

/** A dot in the colour of a request. */
export function dot(slot) {
  const node = el('span', {class: 'e-dot', 'aria-hidden': 'true'});
  node.style.setProperty('--e-own', `var(--e-${slotName(slot)})`);
  return node;
}
