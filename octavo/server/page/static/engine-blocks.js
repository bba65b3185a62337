// The KV cache as a map: one cell a block, toned by how many requests refer to it.

import {Surface, cursor, el, int, panel, plural, setAttr, setText, shortId} from './engine-dom.js';

// Pitches of a cell in CSS pixels: the largest that fits is taken.
const CELLS = [18, 16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3];
const MAX_HEIGHT = 288;
const MIN_DIGIT_CELL = 12;
const LESSON = 'The KV cache is cut into blocks of a fixed number of tokens, so a request takes ' +
  'blocks as it grows, from anywhere, and memory is never reserved for what may come (paged KV). ' +
  'Blocks with the same beginning are shared by counting references. A request that must write ' +
  'into a shared block gets its own copy first (copy on write); blocks nobody holds stay cached ' +
  'until room is needed.';

export class BlocksPanel {
  constructor({model, palette, view, select, redraw}) {
    this._model = model;
    this._palette = palette;
    this._view = view;
    this._char = -1;
    this._columns = 1;
    this._pitch = 8;
    const {root, body} = panel('blocks', 'KV blocks', LESSON);
    this.root = root;
    this._counts = new Map();
    const legend = el('ul', {class: 'e-legend e-block-legend'});
    for (const [name, label] of [['free', 'free'], ['cached', 'cached'], ['one', 'one reference'],
      ['shared', 'shared']]) {
      const count = el('b', {text: '0'});
      this._counts.set(name, count);
      const key = el('span', {class: `e-key e-block-${name}`, 'aria-hidden': 'true'});
      legend.append(el('li', {}, key, `${label} `, count));
    }
    this._canvas = el('canvas', {class: 'e-chart e-chart-blocks'});
    this._readout = el('p', {class: 'e-readout', text: 'Waiting for the engine\'s state.'});
    body.append(legend, this._canvas, this._readout);
    this._surface = new Surface(this._canvas, () => redraw('state'));
    cursor(this._canvas, {
      label: 'KV blocks', size: () => this._refs().length, rowStep: () => this._columns,
      current: () => this._char, at: (x, y) => this._charAt(x, y),
      choose: (index) => {
        this._char = index;
        redraw('select');
      },
      onEnter: (index) => {
        const [holder] = this._model.holders(index * this._model.blocksPerChar);
        if (holder) select(holder.id);
      }});
    this._canvas.addEventListener('click', (event) => {
      const index = this._charAt(event.offsetX, event.offsetY);
      const [holder] = index < 0 ? [] : this._model.holders(index * this._model.blocksPerChar);
      if (holder) select(holder.id);
    });
  }

  _refs() {
    return this._model.state ? this._model.state.blocks.refs : '';
  }

  _charAt(x, y) {
    const column = Math.floor(x / this._pitch);
    const index = Math.floor(y / this._pitch) * this._columns + column;
    return column < this._columns && index < this._refs().length && index >= 0 ? index : -1;
  }

  update(changed) {
    if (!this._model.state) return;
    if (!changed.has('state') && !changed.has('select') && !changed.has('theme')) return;
    if (this._char >= this._refs().length) this._char = -1;
    if (changed.has('state')) this._legend();
    this._draw();
    this._tell();
  }

  _legend() {
    const about = this._model.blocksPerChar > 1 ? '~' : '';
    for (const [name, count] of Object.entries(this._model.blockCounts())) {
      setText(this._counts.get(name), about + int(count));
      setAttr(this._counts.get(name), 'data-count', String(count));
    }
  }

  _fit(count) {
    const width = this._surface.width;
    this._pitch = CELLS[CELLS.length - 1];
    for (const pitch of CELLS) {
      if (Math.ceil(count / Math.max(1, Math.floor(width / pitch))) * pitch <= MAX_HEIGHT) {
        this._pitch = pitch;
        break;
      }
    }
    this._columns = Math.max(1, Math.floor(width / this._pitch));
    const height = `${Math.ceil(count / this._columns) * this._pitch + 1}px`;
    if (this._canvas.style.height !== height) this._canvas.style.height = height;
  }

  _draw() {
    const refs = this._refs();
    this._fit(refs.length);
    const context = this._surface.begin();
    if (!context) return;
    const pitch = this._pitch;
    const size = pitch > 5 ? pitch - 1.5 : pitch - 1;
    const byTone = new Map();
    for (let i = 0; i < refs.length; i += 1) {
      const tone = toneOf(refs[i]);
      if (!byTone.has(tone)) byTone.set(tone, []);
      byTone.get(tone).push(i);
    }
    for (const [tone, indexes] of byTone) {
      context.fillStyle = this._palette.get(`block-${tone}`);
      for (const i of indexes) {
        const [x, y] = this._corner(i);
        context.fillRect(x, y, size, size);
      }
    }
    if (pitch >= MIN_DIGIT_CELL) this._digits(context, refs, size);
    this._outline(context, size);
  }

  _corner(index) {
    return [(index % this._columns) * this._pitch + 0.5,
      Math.floor(index / this._columns) * this._pitch + 0.5];
  }

  _digits(context, refs, size) {
    context.font = `600 ${Math.min(10, this._pitch - 4)}px system-ui, sans-serif`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.fillStyle = this._palette.get('on-shared');
    for (let i = 0; i < refs.length; i += 1) {
      if (refs[i] === '.' || refs[i] === 'c' || refs[i] === '1') continue;
      const [x, y] = this._corner(i);
      context.fillText(refs[i], x + size / 2, y + size / 2 + 0.5);
    }
  }

  _outline(context, size) {
    const per = this._model.blocksPerChar;
    const chosen = this._view.selected && this._model.request(this._view.selected);
    if (chosen && chosen.state !== 'finished') {
      context.strokeStyle = this._palette.get('text');
      context.lineWidth = this._pitch > 7 ? 2 : 1.5;
      for (const block of chosen.blocks) {
        const [x, y] = this._corner(Math.floor(block / per));
        context.strokeRect(x + 0.25, y + 0.25, size - 0.5, size - 0.5);
      }
    }
    if (this._char < 0) return;
    const [x, y] = this._corner(this._char);
    context.strokeStyle = this._palette.get('focus');
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, size + 2, size + 2);
  }

  _tell() {
    const text = this._char >= 0 ? this._describe(this._char) : this._rest();
    setText(this._readout, text);
    this._readout.classList.toggle('e-active', this._char >= 0);
    setAttr(this._canvas, 'aria-valuemax', String(Math.max(0, this._refs().length - 1)));
    setAttr(this._canvas, 'aria-valuenow', String(Math.max(0, this._char)));
    setAttr(this._canvas, 'aria-valuetext', text);
  }

  _rest() {
    const hello = this._model.hello;
    const per = this._model.blocksPerChar;
    const parts = [plural(this._model.state.blocks.total, 'block')];
    if (hello) parts.push(`${hello.block_size} tokens each`);
    if (per > 1) parts.push(`a cell is ${per} blocks and shows the most referred to`);
    const chosen = this._view.selected && this._model.request(this._view.selected);
    parts.push(!chosen ? 'choose a request to see its own' : chosen.state === 'finished'
      ? 'the selected request holds none any more' : 'outlined: the selected request');
    return parts.join(' · ');
  }

  _describe(index) {
    const per = this._model.blocksPerChar;
    const first = index * per;
    const last = Math.min(first + per, this._model.state.blocks.total) - 1;
    const name = per > 1 ? `blocks ${first}–${last}` : `block ${first}`;
    const mark = this._refs()[index];
    if (mark === '.') return `${name} · free`;
    if (mark === 'c') return `${name} · cached, nobody holds it`;
    const holders = new Set();
    for (let block = first; block <= last; block += 1) {
      for (const request of this._model.holders(block)) holders.add(shortId(request.id));
    }
    const names = [...holders];
    const more = names.length > 3 ? ` and ${names.length - 3} more` : '';
    const refs = mark === '+' ? 'more than 9 references' : plural(Number(mark), 'reference');
    const by = names.length ? ` · held by ${names.slice(0, 3).join(', ')}${more}` : '';
    return `${name} · ${per > 1 ? 'up to ' : ''}${refs}${by}`;
  }

  close() {
    this._surface.close();
  }
}

/** The tone of a reference mark: free, cached, one, two, few, many. */
export function toneOf(mark) {
  if (mark === '.') return 'free';
  if (mark === 'c') return 'cached';
  if (mark === '1') return 'one';
  if (mark === '2') return 'two';
  return mark === '3' || mark === '4' ? 'few' : 'many';
}
