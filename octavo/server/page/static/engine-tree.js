// The radix tree of cached blocks as an icicle on its side: a row a node, its bar beginning where
// its parent's ends, so that what is shared stands above what branches off it. Keyboard: a tree.

import {duration, el, int, panel, plural, setAttr, setText} from './engine-dom.js';

const MIN_INTERVAL_S = 0.5; // a tree changes slowly, and reading it needs it to hold still
const RECENT_S = 1;
const LESSON = 'Cached blocks hang in a tree by the tokens they hold. A new prompt follows the ' +
  'tree from the left as far as its tokens agree: that part of its KV is there already and is ' +
  'not computed again. Prompts that begin alike (one system prompt, one chat) share the first ' +
  'bar and branch where they differ. Lengths are on a square-root scale.';

export class TreePanel {
  constructor({model, view}) {
    this._model = model;
    this._view = view;
    this._rows = new Map(); // node id -> row
    this._folded = new Set();
    this._active = null;
    this._drawnAt = -1;
    const {root, head, body} = panel('tree', 'Prefix tree', LESSON);
    this.root = root;
    this._summary = el('p', {class: 'e-legend'});
    head.append(this._summary);
    this._list = el('div', {class: 'e-tree-rows', role: 'tree', 'aria-label': 'Prefix tree',
      on: {keydown: (event) => this._onKey(event), click: (event) => this._onClick(event)}});
    this._empty = el('p', {class: 'e-empty', text: 'The tree is empty: no block is cached yet.'});
    this._scroll = el('div', {class: 'e-scroll e-tree-scroll', hidden: true}, this._list);
    body.append(this._empty, this._scroll);
  }

  update(changed) {
    const state = this._model.state;
    if (!state || !(changed.has('state') || changed.has('select'))) return;
    const age = state.t - this._drawnAt;
    const isFresh = age >= 0 && age < MIN_INTERVAL_S && this._rows.size > 0;
    if (isFresh && !changed.has('select')) return;
    this._drawnAt = state.t;
    this._render();
  }

  _render() {
    const {nodes, left_out: leftOut} = this._model.state.tree;
    const flat = layout(nodes, this._folded);
    const deepest = Math.max(1, ...flat.map(({start, node}) => start + node.tokens));
    const tokens = nodes.reduce((sum, node) => sum + node.tokens, 0);
    setText(this._summary, nodes.length
      ? `${plural(nodes.length, 'node')} · ${plural(tokens, 'token')}` +
        `${leftOut ? ` · ${int(leftOut)} older left out` : ''}` : '');
    this._empty.hidden = flat.length > 0;
    this._scroll.hidden = flat.length === 0;
    const chosen = this._view.selected && this._model.request(this._view.selected);
    // a node is named by its first block
    const path = new Set(chosen && chosen.state !== 'finished' ? chosen.blocks : []);
    const seen = new Set();
    let before = null;
    for (const item of flat) {
      const row = this._rows.get(item.node.id) || this._makeRow(item.node.id);
      seen.add(item.node.id);
      fillRow(row, item, deepest);
      row.root.classList.toggle('e-on-path', path.has(item.node.id));
      row.path.hidden = !path.has(item.node.id);
      const next = before ? before.nextSibling : this._list.firstChild;
      if (next !== row.root) this._list.insertBefore(row.root, next);
      before = row.root;
    }
    for (const [id, row] of this._rows) {
      if (seen.has(id)) continue;
      row.root.remove();
      this._rows.delete(id);
    }
    if (!this._rows.has(this._active)) this._activate(flat.length ? flat[0].node.id : null, false);
  }

  _makeRow(id) {
    const row = {
      toggle: el('span', {class: 'e-toggle', 'aria-hidden': 'true'}),
      label: el('span', {class: 'e-tree-label'}),
      bar: el('span', {class: 'e-bar'}),
      note: el('span', {class: 'e-tree-note'}),
      path: el('span', {class: 'unseen', text: 'held by the selected request', hidden: true}),
    };
    const track = el('span', {class: 'e-track', 'aria-hidden': 'true'}, row.bar);
    row.root = el('div', {class: 'e-tree-row', role: 'treeitem', tabindex: '-1',
      'data-node': String(id)}, row.toggle, row.label, track, row.note, row.path);
    row.id = id;
    this._rows.set(id, row);
    return row;
  }

  _activate(id, focus) {
    const old = this._rows.get(this._active);
    if (old) old.root.tabIndex = -1;
    this._active = id;
    const row = this._rows.get(id);
    if (!row) return;
    row.root.tabIndex = 0;
    if (focus) row.root.focus();
  }

  _rowOf(element) {
    const root = element.closest('[data-node]');
    return root ? [...this._rows.values()].find((row) => row.root === root) : null;
  }

  _onClick(event) {
    const row = this._rowOf(event.target);
    if (!row) return;
    this._activate(row.id, true);
    if (row.root.hasAttribute('aria-expanded')) this._fold(row.id, !this._folded.has(row.id));
  }

  _fold(id, folded) {
    if (folded) this._folded.add(id);
    else this._folded.delete(id);
    this._render();
  }

  _onKey(event) {
    const row = this._rowOf(event.target);
    if (!row) return;
    const rows = [...this._list.children];
    const at = rows.indexOf(row.root);
    const expanded = row.root.getAttribute('aria-expanded');
    const level = Number(row.root.getAttribute('aria-level'));
    let target = null;
    if (event.key === 'ArrowDown') target = rows[at + 1];
    else if (event.key === 'ArrowUp') target = rows[at - 1];
    else if (event.key === 'Home') target = rows[0];
    else if (event.key === 'End') target = rows[rows.length - 1];
    else if (event.key === 'ArrowRight' && expanded === 'false') this._fold(row.id, false);
    else if (event.key === 'ArrowRight' && expanded === 'true') target = rows[at + 1];
    else if (event.key === 'ArrowLeft' && expanded === 'true') this._fold(row.id, true);
    else if (event.key === 'ArrowLeft') {
      target = rows.slice(0, at).reverse()
        .find((one) => Number(one.getAttribute('aria-level')) < level);
    } else if ((event.key === 'Enter' || event.key === ' ') && expanded !== null) {
      this._fold(row.id, expanded === 'true');
    } else return;
    event.preventDefault();
    if (target) this._activate(this._rowOf(target).id, true);
  }

  close() {}
}

/** Nodes in reading order: [{node, level, start: tokens before it, children, folded}]. */
function layout(nodes, folded) {
  const known = new Set(nodes.map((node) => node.id));
  const children = new Map();
  for (const node of nodes) {
    // a node whose parent was left out stands at the top
    const parent = known.has(node.parent) ? node.parent : null;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(node);
  }
  // by first block, not by last use: rows that hold still can be read
  for (const list of children.values()) list.sort((one, other) => one.id - other.id);
  const flat = [];
  const stack = (children.get(null) || []).map((node) => ({node, level: 1, start: 0})).reverse();
  while (stack.length) {
    const item = stack.pop();
    const below = children.get(item.node.id) || [];
    item.children = below.length;
    item.folded = folded.has(item.node.id);
    // the root holds no tokens: its children are the trees
    const isRoot = item.node.tokens === 0 && item.level === 1 && below.length > 0;
    if (!isRoot) flat.push(item);
    if (item.folded && !isRoot) continue;
    for (const node of below.slice().reverse()) {
      stack.push({node, level: isRoot ? 1 : item.level + 1, start: item.start + item.node.tokens});
    }
  }
  return flat;
}

/** Per cent from the left of a depth in tokens: its square root, so that one long prompt does not
 * squeeze the others to nothing. */
function place(tokens, deepest) {
  return 100 * Math.sqrt(tokens / deepest);
}

function fillRow(row, {node, level, start, children, folded}, deepest) {
  setAttr(row.root, 'aria-level', String(level));
  if (children) setAttr(row.root, 'aria-expanded', String(!folded));
  else row.root.removeAttribute('aria-expanded');
  setText(row.toggle, children ? (folded ? '▸' : '▾') : '');
  setText(row.label, plural(node.tokens, 'token'));
  const refs = node.refs ? plural(node.refs, 'ref') : 'cached';
  const age = node.last_used_s < RECENT_S ? 'just now' : `${duration(node.last_used_s)} ago`;
  setText(row.note, `${plural(node.blocks, 'block')} · ${refs} · ${node.refs ? 'in use' : age}`);
  const tone = node.refs === 0 ? 'cached' : node.refs === 1 ? 'one' : node.refs === 2 ? 'two'
    : node.refs < 5 ? 'few' : 'many';
  setAttr(row.bar, 'data-tone', tone);
  const from = place(start, deepest);
  const left = `${from.toFixed(2)}%`;
  const width = `${(place(start + node.tokens, deepest) - from).toFixed(2)}%`;
  if (row.bar.style.left !== left) row.bar.style.left = left;
  if (row.bar.style.width !== width) row.bar.style.width = width;
}
