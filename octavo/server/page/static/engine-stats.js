// Counters, rates with their sparklines, and the histogram of step times.

import {Surface, cursor, duration, el, int, panel, percent, plural, rate, setAttr, setText}
  from './engine-dom.js';
import {NUM_TIME_BUCKETS, bucketStart, timeBucket} from './engine-model.js';

/** The row of numbers. A tile's `data-value` is the exact number behind the text. */
export class Tiles {
  constructor({model, palette, redraw}) {
    this._model = model;
    this._palette = palette;
    this._tiles = new Map();
    this._sparks = new Map();
    this.root = el('dl', {class: 'e-tiles', 'aria-label': 'Counters'});
    for (const [name, label, hint] of [
      ['decode', 'decode', 'Tokens of answers a second, over two seconds'],
      ['prefill', 'prefill', 'Tokens of prompts computed a second, over two seconds'],
      ['running', 'running', 'Requests in the batch'],
      ['waiting', 'waiting', 'Requests waiting for room'],
      ['kv', 'KV blocks in use', 'Blocks held by requests, of all'],
      ['hits', 'prefix cache hits', 'Prompt tokens found in the prefix tree, of those looked up'],
      ['generation_tokens', 'tokens generated', 'Since the engine started'],
      ['finished', 'finished', 'Requests finished since the engine started'],
      ['preemptions', 'preemptions', 'Requests that gave their blocks back to let others go on'],
      ['copies_on_write', 'copies on write', 'Shared blocks copied because one holder wrote'],
      ['jump_forward_tokens', 'jump-forward tokens',
        'Tokens a grammar left no choice about: taken without a step each'],
    ]) this._add(name, label, hint, redraw);
  }

  _add(name, label, hint, redraw) {
    const value = el('span', {class: 'e-number', text: '–'});
    const note = el('span', {class: 'e-note'});
    const tile = el('div', {class: 'e-tile', title: hint, 'data-tile': name},
      el('dt', {text: label}), el('dd', {}, value, note));
    if (name === 'decode' || name === 'prefill') {
      const canvas = el('canvas', {class: 'e-spark', 'aria-hidden': 'true'});
      tile.classList.add('e-rate');
      tile.append(canvas);
      this._sparks.set(name, new Surface(canvas, () => redraw('steps')));
    }
    this._tiles.set(name, {tile, value, note});
    this.root.append(tile);
  }

  _set(name, exact, text, note = '') {
    const {tile, value, note: noteNode} = this._tiles.get(name);
    setText(value, text);
    setText(noteNode, note);
    setAttr(tile, 'data-value', String(exact));
  }

  update(changed) {
    if (changed.has('steps') || changed.has('tick') || changed.has('theme')) this._rates();
    const state = this._model.state;
    if (!state || !changed.has('state')) return;
    this._set('running', state.running, int(state.running));
    this._set('waiting', state.waiting, int(state.waiting));
    const {total, free} = state.blocks;
    const used = total - free;
    this._set('kv', used, percent(used, total), `${int(used)} of ${int(total)}`);
    const totals = state.totals;
    this._set('hits', totals.prefix_hits, percent(totals.prefix_hits, totals.prefix_queries),
      totals.prefix_queries ? `${int(totals.prefix_hits)} of ${int(totals.prefix_queries)}` : '');
    for (const name of ['generation_tokens', 'finished', 'preemptions', 'copies_on_write',
      'jump_forward_tokens']) this._set(name, totals[name], int(totals[name]));
  }

  _rates() {
    const rates = this._model.rates();
    this._set('decode', rates.decode, rate(rates.decode), 'tokens/s');
    this._set('prefill', rates.prefill, rate(rates.prefill), 'tokens/s');
    this._spark('prefill', this._model.spark(0));
    this._spark('decode', this._model.spark(1));
  }

  _spark(name, values) {
    const surface = this._sparks.get(name);
    const context = surface.begin();
    if (!context) return;
    const {width, height} = surface;
    const most = Math.max(1, ...values);
    const pitch = width / (values.length - 1);
    const at = (i) => height - 1.5 - (values[i] / most) * (height - 4);
    context.beginPath();
    values.forEach((_, i) => context.lineTo(i * pitch, at(i)));
    context.strokeStyle = this._palette.get(name);
    context.lineWidth = 1.5;
    context.lineJoin = 'round';
    context.stroke();
    context.lineTo(width, height);
    context.lineTo(0, height);
    context.globalAlpha = 0.16;
    context.fillStyle = this._palette.get(name);
    context.fill();
    context.globalAlpha = 1;
  }

  /** Whether a rate is still falling: then the picture changes without news. */
  get isMoving() {
    const rates = this._model.rates();
    return rates.decode > 0 || rates.prefill > 0 ||
      this._model.spark(0).some(Boolean) || this._model.spark(1).some(Boolean);
  }

  close() {
    for (const surface of this._sparks.values()) surface.close();
  }
}

const TIMES_LESSON = 'How long steps take, on a logarithmic axis. A step that only decodes reads ' +
  'every weight for a token per request and is short; prefill adds work in proportion to its ' +
  'tokens, which is the second hump. Every running request waits for its step, so this is the ' +
  'pace at which tokens appear.';

const LABEL_WIDTH = 56;

export class TimesPanel {
  constructor({model, palette, redraw}) {
    this._model = model;
    this._palette = palette;
    const {root, head, body} = panel('times', 'Step times', TIMES_LESSON);
    this.root = root;
    this._summary = el('p', {class: 'e-legend'});
    head.append(this._summary);
    this._canvas = el('canvas', {class: 'e-chart e-chart-times'});
    this._readout = el('p', {class: 'e-readout'});
    body.append(this._canvas, this._readout);
    this._surface = new Surface(this._canvas, () => redraw('steps'));
    this._range = [0, 1];
    this._bucket = -1;
    const clamp = (index) => Math.max(0, Math.min(this._range[1] - this._range[0] - 1, index));
    cursor(this._canvas, {
      label: 'Step times, shortest to longest', rowStep: () => 1,
      size: () => this._range[1] - this._range[0],
      at: (x) => clamp(Math.floor(x / this._pitch())),
      current: () => (this._bucket < 0 ? -1 : clamp(this._bucket - this._range[0])),
      choose: (index) => {
        this._bucket = index < 0 ? -1 : this._range[0] + index;
        redraw('steps');
      }});
  }

  _pitch() {
    return this._surface.width / (this._range[1] - this._range[0]);
  }

  update(changed) {
    if (!changed.has('steps') && !changed.has('theme')) return;
    const times = this._model.times();
    this._fit(times.counts);
    this._draw(times);
    if (times.number) {
      setText(this._summary, `median ${duration(times.median)} · p99 ${duration(times.p99)}`);
      setAttr(this.root, 'data-steps', String(times.number));
    }
    const bucket = this._bucket;
    const text = bucket >= 0
      ? `${duration(bucketStart(bucket))} to ${duration(bucketStart(bucket + 1))}: ` +
        `${plural(times.counts[bucket], 'step')} ` +
        `(${percent(times.counts[bucket], times.number)})`
      : times.number ? `the last ${plural(times.number, 'step')}` : 'no step yet';
    setText(this._readout, text);
    this._readout.classList.toggle('e-active', bucket >= 0);
    setAttr(this._canvas, 'aria-valuemax', String(this._range[1] - this._range[0] - 1));
    setAttr(this._canvas, 'aria-valuenow', String(Math.max(0, bucket - this._range[0])));
    setAttr(this._canvas, 'aria-valuetext', text);
  }

  /** The buckets shown: those in use with one more on each side, at least eight. */
  _fit(counts) {
    const first = counts.findIndex(Boolean);
    if (first < 0) {
      this._range = [4, 20];
      return;
    }
    const last = counts.findLastIndex(Boolean);
    let [from, to] = [Math.max(0, first - 1), Math.min(NUM_TIME_BUCKETS, last + 2)];
    while (to - from < 8) {
      if (to < NUM_TIME_BUCKETS) to += 1;
      if (to - from < 8 && from > 0) from -= 1;
    }
    this._range = [from, to];
  }

  _draw({counts, median, p99, number}) {
    const context = this._surface.begin();
    if (!context) return;
    const {width, height} = this._surface;
    const [from, to] = this._range;
    const base = height - 18;
    const pitch = this._pitch();
    const most = Math.max(1, ...counts);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'alphabetic';
    for (let bucket = from; bucket < to; bucket += 1) {
      const x = (bucket - from) * pitch;
      const tall = Math.max((counts[bucket] / most) * (base - 18), 1.5);
      context.fillStyle = this._palette.get(bucket === this._bucket ? 'text' : 'bar');
      if (counts[bucket]) context.fillRect(x + 1, base - tall, pitch - 2, tall);
    }
    context.fillStyle = this._palette.get('line');
    context.fillRect(0, base, width, 1);
    this._labels(context, base);
    if (number) {
      this._mark(context, median, 'median', base, 'right');
      if (timeBucket(p99) !== timeBucket(median)) this._mark(context, p99, 'p99', base, 'left');
    }
  }

  _labels(context, base) {
    const [from, to] = this._range;
    const pitch = this._pitch();
    // whole doublings, as many as fit without touching each other or an edge
    const every = Math.max(2, Math.ceil(LABEL_WIDTH / pitch / 2) * 2);
    context.fillStyle = this._palette.get('muted');
    context.textAlign = 'center';
    for (let bucket = Math.ceil(from / every) * every; bucket <= to; bucket += every) {
      const x = (bucket - from) * pitch;
      if (x < LABEL_WIDTH / 2 - 8 || x > this._surface.width - LABEL_WIDTH / 2 + 8) continue;
      context.fillText(duration(bucketStart(bucket)), x, base + 14);
      context.fillRect(Math.round(x), base, 1, 4);
    }
  }

  /** A line at a time. Its label is on that side of it, unless the edge is too near. */
  _mark(context, seconds, label, base, side) {
    const [from] = this._range;
    const exact = Math.log2(seconds / bucketStart(0)) * 2 - from;
    const x = Math.max(0, Math.min(this._surface.width, exact * this._pitch()));
    context.strokeStyle = this._palette.get('text');
    context.lineWidth = 1;
    context.setLineDash([3, 2]);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 14);
    context.lineTo(Math.round(x) + 0.5, base);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = this._palette.get('text');
    const {width} = this._surface;
    const isLeft = side === 'right' ? x > LABEL_WIDTH : x > width - LABEL_WIDTH;
    context.textAlign = isLeft ? 'right' : 'left';
    // a label turned away from the edge would lie on the other one
    context.fillText(label, x, isLeft && side === 'left' ? 24 : 10);
  }

  close() {
    this._surface.close();
  }
}
