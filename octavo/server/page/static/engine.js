// The Engine tab: puts the panels together, opens the stream while the tab is seen, and draws once
// a frame when something came. The panels draw, the model knows, the stream reads.

import {BatchPanel} from './engine-batch.js';
import {BlocksPanel} from './engine-blocks.js';
import {Palette, el, int, plural, setText} from './engine-dom.js';
import {Load} from './engine-load.js';
import {EngineModel} from './engine-model.js';
import {RequestsPanel, SelectedPanel} from './engine-requests.js';
import {Tiles, TimesPanel} from './engine-stats.js';
import {EventStream} from './engine-stream.js';
import {TreePanel} from './engine-tree.js';

// Frames a second are bought from the machine that also runs the model: five are enough to follow.
const INTERVAL_S = 0.2;
const CALM_INTERVAL_S = 1; // for who asked the system for less motion
const TICK_MS = 1000; // while rates fall without news
const KEY_CHECK_MS = 1000; // while the server refuses the key that the page has

let mounted = null;

/** Builds the view inside of element. options.headers(): headers for a request; announce(text):
 * tells users of screen readers; askForKey(): optional, asks for the API key; onConnection(isLive):
 * whether the stream came or was lost. */
export function mount(element, {headers = () => ({}), announce = () => {}, askForKey = null,
  onConnection = () => {}} = {}) {
  unmount();
  mounted = new EngineView(element, {headers, announce, askForKey, onConnection});
}

/** What the rest of the page learned: whether the server answers. */
export function setConnection(isThere) {
  if (mounted) mounted.setConnection(isThere);
}

/** Takes the view away: closes the stream, stops the load, frees what watches. */
export function unmount() {
  if (mounted) mounted.close();
  mounted = null;
}

class EngineView {
  constructor(element, {headers, announce, askForKey, onConnection}) {
    this._element = element;
    this._announce = announce;
    this._askForKey = askForKey;
    this._onConnection = onConnection;
    this._isThere = true;
    this._isLost = false;
    this._model = new EngineModel();
    this._changed = new Set();
    this._frame = 0;
    this._tick = 0;
    this._keyCheck = 0;
    this._headers = headers;
    this._paused = false;
    this._calm = matchMedia('(prefers-reduced-motion: reduce)');
    this._dark = matchMedia('(prefers-color-scheme: dark)');
    this._view = {
      selected: null,
      selectedKey: () => (this._model.request(this._view.selected) || {key: ''}).key,
    };
    this.root = el('div', {class: 'engine'});
    this._palette = new Palette(this.root);
    this._makeLoad(headers);
    this._makeBar();
    this._makePanels();
    element.replaceChildren(this.root);
    const interval = this._calm.matches ? CALM_INTERVAL_S : INTERVAL_S;
    this._stream = new EventStream({
      url: new URL(`octavo/events?interval=${interval}`, document.baseURI), headers,
      onEvent: (name, value) => this._onEvent(name, value),
      onStatus: (kind, text) => this._onStatus(kind, text)});
    this._watch();
    this._follow();
  }

  _makeBar() {
    this._status = el('span', {class: 'e-status', 'data-kind': 'closed', text: 'Closed'});
    this._stale = el('strong', {class: 'e-stale', hidden: true,
      text: 'Not live: these are the last figures that came'});
    this._facts = el('span', {class: 'e-muted e-engine-facts'});
    this._pauseButton = el('button', {type: 'button', class: 'button', 'aria-pressed': 'false',
      text: 'Pause', title: 'Freeze the picture to study it',
      on: {click: () => this._setPaused(!this._paused)}});
    this._retry = el('button', {type: 'button', class: 'button', hidden: true,
      text: 'Connect again', on: {click: () => this._onRetry()}});
    this._loadNote = el('span', {class: 'e-muted e-load-note', role: 'status'});
    this._loadButton = el('button', {type: 'button', class: 'button primary',
      text: 'Make some load', title: 'Send a few varied requests from this browser',
      on: {click: () => this._toggleLoad()}});
    this.root.append(el('div', {class: 'e-bar-top'},
      el('p', {class: 'e-live'}, this._status, this._stale, this._facts),
      el('div', {class: 'e-actions'}, this._loadNote, this._retry, this._loadButton,
        this._pauseButton)));
  }

  _makePanels() {
    const parts = {model: this._model, palette: this._palette, view: this._view,
      redraw: (what) => this._redraw(what), select: (id) => this._select(id)};
    this._tiles = new Tiles(parts);
    this._panels = [this._tiles, new BatchPanel(parts), new TimesPanel(parts),
      new RequestsPanel(parts), new SelectedPanel(parts), new BlocksPanel(parts),
      new TreePanel(parts)];
    const [tiles, ...panels] = this._panels;
    this.root.append(tiles.root, el('div', {class: 'e-grid'}, ...panels.map((one) => one.root)));
  }

  _makeLoad(headers) {
    this._load = new Load({
      headers,
      onProgress: (done) => setText(this._loadNote, `${plural(done, 'answer')} so far`),
      onEnd: (problem) => {
        setText(this._loadButton, 'Make some load');
        this._loadButton.classList.add('primary');
        setText(this._loadNote, problem ? `Stopped: ${problem}` : '');
        this._announce(problem ? `The load stopped: ${problem}` : 'The load is over');
      }});
  }

  _toggleLoad() {
    if (this._load.isRunning) {
      this._load.stop();
      return;
    }
    if (!this._model.hello) return;
    if (this._paused) this._setPaused(false);
    setText(this._loadButton, 'Stop the load');
    this._loadButton.classList.remove('primary');
    this._load.start(this._model.hello.model, this._model.hello.max_model_len);
  }

  // Drawing ---------------------------------------------------------------------------------------

  _onEvent(name, value) {
    const part = this._model.apply(name, value);
    if (part === 'hello') {
      this._showHello();
      this._onStatus('live', 'Live');
    }
    if (part) this._redraw(part);
  }

  _showHello() {
    const {model, backend, threads, max_num_seqs: seqs, max_num_batched_tokens: tokens,
      version} = this._model.hello;
    setText(this._facts, `${model} · ${backend}, ${plural(threads, 'thread')} · ` +
      `at most ${int(seqs)} requests and ${int(tokens)} tokens a step · Octavo ${version}`);
    this._loadButton.disabled = false;
    this._redraw('state');
    this._redraw('steps');
  }

  _redraw(part) {
    this._changed.add(part);
    if (!this._frame) this._frame = requestAnimationFrame(() => this._draw());
  }

  _draw() {
    this._frame = 0;
    const changed = this._changed;
    this._changed = new Set();
    if (changed.has('theme')) this._palette.refresh();
    for (const one of this._panels) one.update(changed);
    this._keepTicking();
  }

  _keepTicking() {
    const wanted = this._stream.isOpen && !this._paused && this._tiles.isMoving;
    if (wanted && !this._tick) this._tick = setInterval(() => this._redraw('tick'), TICK_MS);
    else if (!wanted && this._tick) {
      clearInterval(this._tick);
      this._tick = 0;
    }
  }

  _select(id) {
    if (this._view.selected === id) return;
    this._view.selected = id;
    this._redraw('select');
    this._announce(id ? `Request ${id} selected` : 'No request selected');
  }

  // The stream ------------------------------------------------------------------------------------

  _watch() {
    this._onVisibility = () => this._follow();
    document.addEventListener('visibilitychange', this._onVisibility);
    this._onTheme = () => this._redraw('theme');
    this._dark.addEventListener('change', this._onTheme);
    this._themeObserver = new MutationObserver(this._onTheme);
    this._themeObserver.observe(document.documentElement,
      {attributes: true, attributeFilter: ['data-theme', 'class', 'style']});
  }

  /** The stream is open exactly while somebody can see it move. */
  _follow() {
    if (document.hidden || this._paused) {
      if (this._stream.isOpen) this._stream.close();
    } else this._stream.open();
  }

  _setPaused(paused) {
    this._paused = paused;
    this._pauseButton.setAttribute('aria-pressed', String(paused));
    setText(this._pauseButton, paused ? 'Go on' : 'Pause');
    this._announce(paused ? 'The picture is frozen' : 'The picture is live');
    this._follow();
    if (paused) this._onStatus('paused', 'Paused');
    this._keepTicking();
  }

  _onStatus(kind, text) {
    if (kind === 'closed' && this._paused) return;
    const isEarly = kind === 'live' && this._model.hello === null;
    this._status.dataset.kind = isEarly ? 'connecting' : kind;
    setText(this._status, isEarly ? 'Waiting for the engine' : text || 'Closed');
    this._retry.hidden = kind !== 'refused' && kind !== 'waiting';
    if (kind === 'refused') this._announce(text);
    this._loadButton.disabled = this._model.hello === null;
    clearInterval(this._keyCheck);
    if (kind === 'refused') this._awaitKey();
    // while it connects, the figures are as old as they were
    if (kind === 'live') this._isLost = false;
    else if (kind === 'waiting' || kind === 'refused') this._isLost = true;
    this._showStale();
    if (['live', 'waiting', 'refused'].includes(kind)) this._onConnection(kind === 'live');
  }

  setConnection(isThere) {
    const isBack = isThere && !this._isThere;
    this._isThere = isThere;
    if (isBack) this._stream.hurry();
    this._showStale();
  }

  _showStale() {
    const isStale = this._model.hello !== null && (this._isLost || !this._isThere);
    this.root.classList.toggle('is-stale', isStale);
    this._stale.hidden = !isStale;
  }

  /** The key is given elsewhere on the page: the stream opens again when there is another one. */
  _awaitKey() {
    const refused = JSON.stringify(this._headers());
    this._keyCheck = setInterval(() => {
      if (JSON.stringify(this._headers()) === refused || document.hidden || this._paused) return;
      clearInterval(this._keyCheck);
      this._stream.open();
    }, KEY_CHECK_MS);
  }

  _onRetry() {
    if (this._status.dataset.kind === 'refused' && this._askForKey) this._askForKey();
    this._stream.close();
    this._stream.open();
  }

  close() {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._dark.removeEventListener('change', this._onTheme);
    this._themeObserver.disconnect();
    this._load.stop();
    this._stream.close();
    cancelAnimationFrame(this._frame);
    clearInterval(this._tick);
    clearInterval(this._keyCheck);
    for (const one of this._panels) one.close();
    this._element.replaceChildren();
  }
}
