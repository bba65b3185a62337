// Small pieces every panel of the engine view is made of: elements, numbers as text, theme colours
// for canvases, canvases sharp at any pixel ratio. Knows nothing of engines; text only by
// textContent.

/** An element. props: `class`, `text`, `on` ({event: listener}); anything else is an attribute. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') node.textContent = value;
    else if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets text only when it differs: an untouched node costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Like setText, for an attribute. */
export function setAttr(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const WHOLE = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});

export function int(value) {
  return WHOLE.format(value);
}

/** A rate with as many digits as a reader uses. */
export function rate(value) {
  return value >= 10 || value === 0 ? WHOLE.format(value) : value.toFixed(1);
}

export function percent(part, whole) {
  if (!whole) return '–';
  const value = (100 * part) / whole;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Seconds as a short duration: "3.1 ms", "42 ms", "1.3 s", "2 min". */
export function duration(seconds) {
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export function plural(count, noun) {
  return `${int(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/** A request id where there is little room: how it begins, and the end that tells samples apart. */
export function shortId(id) {
  const mark = id.lastIndexOf('#');
  return mark > 16 ? `${id.slice(0, 13)}…${id.slice(mark)}` : id;
}

/** A titled panel with its short lesson: {root, head, body}. */
export function panel(name, title, lesson) {
  const id = `engine-${name}`;
  const heading = el('h2', {id, text: title});
  const head = el('div', {class: 'e-head'}, heading);
  const why = el('details', {class: 'e-why'},
    el('summary', {}, 'What am I looking at?', el('span', {class: 'unseen', text: ` (${title})`})),
    el('p', {text: lesson}));
  const body = el('div', {class: 'e-body'});
  const root = el('section', {class: `e-panel e-${name}`, 'aria-labelledby': id}, head, why, body);
  return {root, head, body};
}

const NUM_SLOT_COLOURS = 12;

/** The theme's colours as a canvas needs them: resolved, and read again when the theme changes. */
export class Palette {
  constructor(root) {
    this._probe = el('span', {class: 'e-probe', 'aria-hidden': 'true'});
    root.append(this._probe);
    this._known = new Map();
  }

  /** Forgets what it resolved: call when the theme changed. */
  refresh() {
    this._known.clear();
  }

  /** The custom property `--e-NAME`. */
  get(name) {
    let colour = this._known.get(name);
    if (colour === undefined) {
      this._probe.style.color = `var(--e-${name})`;
      colour = getComputedStyle(this._probe).color;
      this._known.set(name, colour);
    }
    return colour;
  }

  /** The colour of a request, from its slot. Neighbouring slots differ most. */
  slot(slot) {
    return this.get(slotName(slot));
  }
}

export function slotName(slot) {
  return `slot-${slot % NUM_SLOT_COLOURS}`;
}

/** A canvas that follows its CSS width. onResize() is called after each change of width. */
export class Surface {
  constructor(canvas, onResize) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    this.width = 0;
    this.height = 0;
    this._ratio = 0;
    this._observer = new ResizeObserver((entries) => {
      const box = entries[entries.length - 1].contentRect;
      if (box.width === this.width && box.height === this.height) return;
      this.width = box.width;
      this.height = box.height;
      this._ratio = 0;
      onResize();
    });
    this._observer.observe(canvas);
  }

  /** A cleared context in CSS pixels; null while the canvas has no size. */
  begin() {
    if (this.width < 1 || this.height < 1) return null;
    const ratio = window.devicePixelRatio || 1;
    if (ratio !== this._ratio) {
      this._ratio = ratio;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    return this.context;
  }

  close() {
    this._observer.disconnect();
  }
}

/** A pattern of diagonal strokes, to lay over a filled shape. */
export function hatch(context, colour) {
  const tile = document.createElement('canvas');
  const size = 12;
  tile.width = size;
  tile.height = size;
  const pen = tile.getContext('2d');
  pen.strokeStyle = colour;
  pen.lineWidth = 2.4;
  for (const shift of [-size, -size / 2, 0, size / 2, size]) {
    pen.beginPath();
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
    pen.stroke();
  }
  const pattern = context.createPattern(tile, 'repeat');
  pattern.setTransform(new DOMMatrix().scale(0.5));
  return pattern;
}

const MANTISSAS = [1, 1.5, 2, 3, 4, 5, 6, 8];

/** The next round number that holds value (and `least`): a whole one from 2 on. */
export function niceMax(value, least) {
  for (let power = 1; ; power *= 10) {
    for (const mantissa of MANTISSAS) {
      const top = mantissa * power;
      if (top >= value && top >= least) return top;
    }
  }
}

/**
 * Makes a canvas a slider over items: pointer and arrow keys choose one, `describe` tells it.
 * size(): items; step(key): how far a vertical arrow goes; at(x, y): index or -1;
 * choose(index or -1): show it.
 */
export function cursor(canvas, {label, size, rowStep, at, choose, current, onEnter}) {
  canvas.tabIndex = 0;
  const role = {role: 'slider', 'aria-label': label, 'aria-valuemin': '0', 'aria-valuemax': '0',
    'aria-valuenow': '0', 'aria-valuetext': 'nothing to show yet'};
  for (const [name, value] of Object.entries(role)) canvas.setAttribute(name, value);
  canvas.addEventListener('pointermove', (event) => choose(at(event.offsetX, event.offsetY)));
  canvas.addEventListener('pointerdown', (event) => choose(at(event.offsetX, event.offsetY)));
  canvas.addEventListener('pointerleave', (event) => {
    if (event.pointerType === 'mouse' && document.activeElement !== canvas) choose(-1);
  });
  canvas.addEventListener('focus', () => {
    if (canvas.matches(':focus-visible') && current() < 0 && size() > 0) choose(size() - 1);
  });
  canvas.addEventListener('blur', () => choose(-1));
  canvas.addEventListener('keydown', (event) => {
    const last = size() - 1;
    const index = current();
    const moves = {ArrowLeft: index - 1, ArrowRight: index + 1, ArrowUp: index - rowStep(),
      ArrowDown: index + rowStep(), Home: 0, End: last, PageUp: index - 10, PageDown: index + 10};
    if (event.key === 'Escape') choose(-1);
    else if (event.key === 'Enter' && onEnter && index >= 0) onEnter(index);
    else if (event.key in moves && last >= 0) {
      const from = index < 0 && event.key !== 'Home' ? last : moves[event.key];
      choose(Math.max(0, Math.min(last, from)));
    } else return;
    event.preventDefault();
  });
}
