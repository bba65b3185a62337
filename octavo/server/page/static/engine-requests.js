// The requests as a table, and the one selected in detail: its block table and its part of the
// batch.

import {dot} from './engine-batch.js';
import {duration, el, int, panel, percent, plural, setAttr, setText} from './engine-dom.js';

const MAX_ROWS = 100;
const MAX_CHIPS = 256;
const ID_TAIL = 6;
const LESSON = 'A request waits until there is room, then runs until it is done. "Computed" ' +
  'counts the tokens whose KV exists: it chases prompt plus output. "Cached" is the part of the ' +
  'prompt found in the prefix tree. If blocks run out, the newest request is preempted: it gives ' +
  'its blocks back and computes them again later.';
const COLUMNS = ['Request', 'State', 'Prompt', 'Cached', 'Computed', 'Output', 'Age'];

export class RequestsPanel {
  constructor({model, view, select}) {
    this._model = model;
    this._view = view;
    this._select = select;
    this._rows = new Map();
    const {root, head, body} = panel('requests', 'Requests', LESSON);
    this.root = root;
    this._summary = el('p', {class: 'e-legend'});
    head.append(this._summary);
    this._body = el('tbody');
    this._empty = el('p', {class: 'e-empty', text: 'Nobody is asking anything right now. ' +
      '“Make some load” above sends a few requests.'});
    this._scroll = el('div', {class: 'e-scroll e-requests-scroll', tabindex: '0', role: 'region',
      'aria-label': 'Requests', hidden: true},
    el('table', {class: 'e-table'},
      el('caption', {class: 'unseen', text: 'Requests; choose one to see its blocks'}),
      el('thead', {}, el('tr', {}, ...COLUMNS.map((text) => el('th', {scope: 'col', text})))),
      this._body));
    body.append(this._empty, this._scroll);
  }

  update(changed) {
    if (!this._model.state || !(changed.has('state') || changed.has('select'))) return;
    const requests = this._model.requests;
    const shown = requests.slice(0, MAX_ROWS);
    const {running, waiting} = this._model.state;
    setText(this._summary, `${int(running)} running · ${int(waiting)} waiting` +
      `${requests.length > MAX_ROWS ? ` · ${int(requests.length - MAX_ROWS)} not listed` : ''}`);
    this._empty.hidden = shown.length > 0;
    this._scroll.hidden = shown.length === 0;
    const seen = new Set();
    let before = null;
    for (const request of shown) {
      const row = this._rows.get(request.id) || this._makeRow(request);
      seen.add(request.id);
      this._fill(row, request);
      const place = before ? before.nextSibling : this._body.firstChild;
      if (place !== row.root) this._body.insertBefore(row.root, place);
      before = row.root;
    }
    for (const [id, row] of this._rows) {
      if (seen.has(id)) continue;
      row.root.remove();
      this._rows.delete(id);
    }
  }

  _makeRow(request) {
    const button = el('button', {type: 'button', class: 'e-pick', 'aria-pressed': 'false'},
      dot(request.slot), idSpan(request.id));
    const cells = COLUMNS.slice(1).map(() => el('td'));
    const root = el('tr', {'data-request': request.id,
      on: {click: () => this._select(this._view.selected === request.id ? null : request.id)}},
    el('th', {scope: 'row'}, button), ...cells);
    const row = {root, button, cells};
    this._rows.set(request.id, row);
    return row;
  }

  _fill(row, request) {
    setAttr(row.root, 'data-state', request.state);
    const isSelected = this._view.selected === request.id;
    setAttr(row.button, 'aria-pressed', String(isSelected));
    row.root.classList.toggle('e-selected', isSelected);
    const texts = [request.state, int(request.prompt_tokens), int(request.cached_tokens),
      int(request.computed_tokens), int(request.output_tokens), duration(request.age_s)];
    texts.forEach((text, i) => setText(row.cells[i], text));
  }

  close() {}
}

const SELECTED_LESSON = 'The block table maps the request\'s tokens to blocks of the cache: ' +
  'entry i holds its tokens from i times the block size on. The ids need not follow each other. ' +
  'Marked entries are shared with other requests: samples of one prompt, or prompts that begin ' +
  'alike.';

/** The selected request. */
export class SelectedPanel {
  constructor({model, view, select}) {
    this._model = model;
    this._view = view;
    this._shown = '';
    this._known = null; // the last that was known of it: it stays readable when the request is gone
    const {root, head, body} = panel('selected', 'Block table', SELECTED_LESSON);
    this.root = root;
    this._clear = el('button', {type: 'button', class: 'button e-small', text: 'Deselect',
      hidden: true, on: {click: () => select(null)}});
    head.append(this._clear);
    this._empty = el('p', {class: 'e-empty', text: 'Choose a request in the table (or a block in ' +
      'the map) to see which blocks hold its tokens, and which of them it shares.'});
    this._dot = el('span', {class: 'e-selected-dot'});
    this._name = el('span', {class: 'e-id'});
    this._facts = el('p', {class: 'e-facts'});
    this._share = el('span');
    this._shareBar = el('span', {class: 'e-bar'});
    this._progress = el('div', {class: 'e-progress', 'aria-hidden': 'true'});
    this._parts = ['cached', 'computed', 'rest'].map((name) => {
      const part = el('span', {class: `e-part e-part-${name}`});
      this._progress.append(part);
      return part;
    });
    this._chips = el('ol', {class: 'e-chips', start: '0', 'aria-label': 'Block table'});
    this._more = el('p', {class: 'e-muted'});
    this._detail = el('div', {class: 'e-detail', hidden: true},
      el('p', {class: 'e-selected-name'}, this._dot, this._name), this._facts, this._progress,
      el('p', {class: 'e-share'}, this._share,
        el('span', {class: 'e-track', 'aria-hidden': 'true'}, this._shareBar)),
      el('div', {class: 'e-scroll e-chips-scroll', tabindex: '0', role: 'region',
        'aria-label': 'Block table'}, this._chips), this._more);
    body.append(this._empty, this._detail);
  }

  update(changed) {
    if (!changed.has('state') && !changed.has('steps') && !changed.has('select')) return;
    const id = this._view.selected;
    this._empty.hidden = Boolean(id);
    this._detail.hidden = !id;
    this._clear.hidden = !id;
    if (!id) {
      this._known = null;
      return;
    }
    const found = this._model.request(id);
    if (found && found.state !== 'finished') this._known = found;
    const known = this._known && this._known.id === id ? this._known : found;
    if (!known) return;
    const isOver = !found || found.state === 'finished';
    this._fill(known, isOver ? 'finished' : known.state, changed);
  }

  _fill(request, state, changed) {
    setText(this._name, request.id);
    if (this._dot.dataset.slot !== String(request.slot)) {
      this._dot.dataset.slot = String(request.slot);
      this._dot.replaceChildren(dot(request.slot));
    }
    const total = request.prompt_tokens + request.output_tokens;
    setText(this._facts, `${state} · ${int(request.computed_tokens)} of ` +
      `${plural(total, 'token')} computed, ${int(request.cached_tokens)} of them found in the ` +
      'cache · ' +
      `${plural(numBlocks(request), 'block')}`);
    const cached = request.cached_tokens / total;
    const computed = Math.max(0, request.computed_tokens - request.cached_tokens) / total;
    [cached, computed, Math.max(0, 1 - cached - computed)].forEach((share, i) => {
      const grow = share.toFixed(3);
      if (this._parts[i].style.flexGrow !== grow) this._parts[i].style.flexGrow = grow;
    });
    if (changed.has('steps') || changed.has('select')) this._fillShare(request, state);
    this._fillChips(request, state);
  }

  _fillShare(request, state) {
    const share = state === 'finished' ? {last: 0, tokens: 0, total: 0}
      : this._model.share(request.key);
    setText(this._share, state === 'finished' ? 'It is done; its full blocks stay cached.'
      : `Newest step: ${int(share.last)} of its ${plural(share.lastTotal, 'token')} · last 120 ` +
        `steps: ${percent(share.tokens, share.total)} of the tokens`);
    const width = `${share.total ? ((100 * share.tokens) / share.total).toFixed(1) : 0}%`;
    if (this._shareBar.style.width !== width) this._shareBar.style.width = width;
  }

  _fillChips(request, state) {
    const blocks = request.blocks.slice(0, MAX_CHIPS);
    const marks = blocks.map((block) => (state === 'finished' ? '1' : this._model.mark(block)));
    const shown = `${request.id} ${state} ${blocks.map((block, i) => block + marks[i]).join(' ')}`;
    if (shown === this._shown) return;
    this._shown = shown;
    this._chips.replaceChildren(...blocks.map((block, i) => chip(i, block, marks[i])));
    const left = numBlocks(request) - blocks.length;
    setText(this._more, left ? `and ${plural(left, 'block')} more` : '');
  }

  close() {}
}

/** An id whose end, which tells samples apart, stays readable where there is no room for all. */
function idSpan(id) {
  const mark = id.lastIndexOf('#');
  const at = mark > 0 ? mark : Math.max(0, id.length - ID_TAIL);
  return el('span', {class: 'e-id e-id-cut', title: id},
    el('span', {class: 'e-id-head', text: id.slice(0, at)}), el('span', {text: id.slice(at)}));
}

/** Long lists of ids are cut on the way. */
function numBlocks(request) {
  return request.num_blocks === undefined ? request.blocks.length : request.num_blocks;
}

function chip(index, block, mark) {
  const isShared = mark !== '1' && mark !== '.' && mark !== 'c';
  const refs = mark === '+' ? 'more than 9' : mark;
  return el('li', {class: isShared ? 'e-chip e-chip-shared' : 'e-chip', 'data-block': String(block),
    title: `entry ${index} is block ${block}${isShared ? `, ${refs} references` : ''}`},
  el('span', {class: 'e-chip-index', text: String(index)}),
  el('span', {class: 'unseen', text: ': block '}),
  el('span', {class: 'e-chip-block', text: String(block)}),
  isShared ? el('span', {class: 'e-chip-refs', text: `×${mark}`}) : null,
  isShared ? el('span', {class: 'unseen', text: `: shared, ${refs} references`}) : null);
}
