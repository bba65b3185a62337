// The token heat-map of an answer: each token coloured by its probability, with the alternatives
// of its place on hover and on keyboard focus.

import {h} from './dom.js';

// lower bounds of probability; the last is the colour of what nobody would have guessed
const LEVELS = [[0.9, '90 % and more'], [0.6, '60 to 90 %'], [0.3, '30 to 60 %'],
  [0.1, '10 to 30 %'], [0, 'under 10 %']];
const TIP_GAP = 8;

/** What the colours mean. */
export function legend() {
  return h('ul', {class: 'legend', 'aria-label': 'Probability of a token'},
    LEVELS.map(([, label], level) => h('li', {},
      h('span', {class: 'token', 'data-level': level, 'aria-hidden': 'true'}, 'abc'), label)));
}

/** Perplexity of an answer: e to the mean of minus log-probability. */
export function perplexity(tokens) {
  return Math.exp(-tokens.reduce((sum, token) => sum + token[1], 0) / tokens.length);
}

/** A view of node.tokens. `update()` adds those that came and takes away those that left. */
export class TokenMap {
  #tokens = [];
  #tip;

  /** tip: the TokenTip that shows alternatives, one for all maps. */
  constructor(tip) {
    this.#tip = tip;
    this.element = h('div', {class: 'tokens', role: 'group',
      'aria-label': 'Tokens of the answer, coloured by probability. Arrow keys move.',
      onkeydown: (event) => this.#onKey(event),
      onclick: (event) => this.#show(event.target, true),
      onfocusin: (event) => this.#show(event.target, false),
      onfocusout: () => this.#tip.hide(),
      onmouseover: (event) => this.#show(event.target, false),
      onmouseout: () => this.#tip.leave()});
  }

  update(tokens) {
    while (this.#tokens.length > tokens.length) {
      this.#tokens.pop();
      this.element.lastChild.remove();
    }
    for (const token of tokens.slice(this.#tokens.length)) {
      const index = this.#tokens.push(token) - 1;
      this.element.append(tokenElement(token, index));
    }
  }

  #show(target, isPinned) {
    const element = target.closest?.('.token');
    if (element) this.#tip.show(element, this.#tokens[Number(element.dataset.index)], isPinned);
  }

  #onKey(event) {
    const all = this.element.children;
    const at = Number(event.target.dataset.index);
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1}[event.key];
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this.#show(event.target, true);
    } else if (to !== undefined && all[to]) {
      event.preventDefault();
      event.target.tabIndex = -1;
      all[to].tabIndex = 0;
      all[to].focus();
    }
  }
}

/** The alternatives of one place, near it. */
export class TokenTip {
  #anchor = null;
  #isPinned = false;

  constructor() {
    this.element = h('div', {class: 'tip', role: 'tooltip', id: 'token-tip', hidden: true});
  }

  show(anchor, token, isPinned) {
    if (this.#isPinned && !isPinned && anchor !== document.activeElement) return;
    this.hide();
    this.#anchor = anchor;
    this.#isPinned = isPinned;
    this.element.replaceChildren(tipTable(token));
    this.element.hidden = false;
    anchor.setAttribute('aria-describedby', 'token-tip');
    this.#place(this.#box());
  }

  /** The first line of a token that is broken. */
  #box() {
    return this.#anchor.getClientRects()[0] ?? this.#anchor.getBoundingClientRect();
  }

  /** The pointer left: stays for the focus, and where it was clicked. */
  leave() {
    if (!this.#isPinned && this.#anchor !== document.activeElement) this.hide();
  }

  /** Stays at its token while that scrolls in `frame`. */
  follow(frame) {
    if (this.#anchor === null) return;
    const box = this.#box();
    const seen = frame.getBoundingClientRect();
    if (box.bottom < seen.top || box.top > seen.bottom) this.hide();
    else this.#place(box);
  }

  /** Whether there was anything to hide. */
  hide() {
    const wasShown = !this.element.hidden;
    this.#anchor?.removeAttribute('aria-describedby');
    this.#anchor = null;
    this.#isPinned = false;
    this.element.hidden = true;
    return wasShown;
  }

  #place(box) {
    const {offsetWidth: width, offsetHeight: height} = this.element;
    const left = Math.min(Math.max(TIP_GAP, box.left), innerWidth - width - TIP_GAP);
    const below = box.bottom + TIP_GAP;
    const top = below + height < innerHeight ? below : Math.max(TIP_GAP, box.top - height - TIP_GAP);
    this.element.style.left = `${left}px`;
    this.element.style.top = `${top}px`;
  }
}

function tokenElement([text, logprob], index) {
  const probability = Math.exp(logprob);
  const level = LEVELS.findIndex(([least]) => probability >= least);
  return h('span', {class: 'token', role: 'button', tabIndex: index === 0 ? 0 : -1,
    'data-level': level, 'data-index': index,
    'aria-label': `${visible(text)}, ${percent(probability)}`}, text.replace(/\n/g, '↵\n') || '·');
}

function tipTable([text, logprob, alternatives]) {
  const rows = alternatives.map(([other, value]) => [other, value]);
  const chosen = rows.findIndex(([other, value]) => value === logprob
    && (other === text || !text || other.startsWith('bytes:')));
  if (chosen < 0) rows.push([text, logprob]);
  const at = chosen < 0 ? rows.length - 1 : chosen;
  return h('table', {}, h('caption', {}, `log-probability ${logprob.toFixed(3)}`),
    h('tbody', {}, rows.map(([other, value], row) => tipRow(other, value, row === at))));
}

function tipRow(text, logprob, isChosen) {
  const probability = Math.exp(logprob);
  const bar = h('span', {class: 'tip-bar'});
  bar.style.width = `${Math.max(1, probability * 100)}%`;
  return h('tr', {class: isChosen ? 'chosen' : ''},
    h('th', {scope: 'row'}, h('code', {}, visible(text)),
      isChosen ? h('span', {class: 'unseen'}, ' (drawn)') : null),
    h('td', {class: 'tip-track', 'aria-hidden': 'true'}, bar),
    h('td', {class: 'tip-number'}, percent(probability)));
}

/** White space made visible. */
function visible(text) {
  if (text === '') return 'part of a character';
  return text.replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/ /g, '␣');
}

function percent(probability) {
  if (probability >= 0.9995) return '100 %';
  if (probability < 0.001) return '< 0.1 %';
  return `${(probability * 100).toFixed(1)} %`;
}
