// The shell of the page: tabs, theme, API key, the model's name and whether the server is there.
// What happens inside of a tab is the views' business (chat.js, engine.js).

import {ApiError, apiKey, call, headers, onOutcome, setApiKey} from './api.js';
import {mountChat} from './chat.js';
import {announce, dialog, h, icon, iconButton} from './dom.js';

const TABS = ['chat', 'engine'];
const THEMES = ['auto', 'light', 'dark'];
// how often an idle page asks whether the server is there, and how often while it is not
const CALM_MS = 15000;
const EAGER_MS = 2000;
// a server that answers nothing for this long is not there
const ANSWER_MS = 15000;

const byId = (id) => document.getElementById(id);

const app = {model: '', maxModelLen: 0, isReady: false, isUnknown: true, chat: null, engine: null,
  engineTries: 0, isEngineLoading: false};
let keyButton;
let keyDialog = null;
let timer = 0;
let checks = 0;
let askedFor = null;

// Tabs ------------------------------------------------------------------------------------------

function shownTab() {
  const name = location.hash.slice(1).split('/')[0];
  return TABS.includes(name) ? name : 'chat';
}

async function showTab(name) {
  for (const tab of TABS) {
    const isShown = tab === name;
    byId(`tab-${tab}`).setAttribute('aria-selected', String(isShown));
    byId(`tab-${tab}`).tabIndex = isShown ? 0 : -1;
    byId(`panel-${tab}`).hidden = !isShown;
  }
  document.title = name === 'chat' ? 'Octavo' : 'Engine - Octavo';
  if (name === 'engine') await enterEngine();
  else await leaveEngine();
}

function selectTab(name) {
  if (shownTab() !== name) history.replaceState(null, '', `#${name}`);
  return showTab(name);
}

function onTabKey(event) {
  const at = TABS.indexOf(event.target.id.replace('tab-', ''));
  const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: TABS.length - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const name = TABS[(to + TABS.length) % TABS.length];
  byId(`tab-${name}`).focus();
  selectTab(name);
}

/** The engine view costs the server something: it is there only while it is seen. */
async function enterEngine() {
  if (app.isEngineLoading) return;
  const panel = byId('panel-engine');
  try {
    if (app.engine === null) await loadEngine(panel);
    if (shownTab() === 'engine' && !panel.dataset.mounted) {
      panel.dataset.mounted = 'yes';
      app.engine.mount(panel, {headers, announce, askForKey, onConnection: onEngineStream});
      app.engine.setConnection(app.isReady || app.isUnknown);
    }
  } catch (error) {
    delete panel.dataset.mounted;
    showEngineFailure(panel, error);
    check();
  }
}

/** A browser keeps the failure of a module under its address: each try has one of its own. */
async function loadEngine(panel) {
  app.isEngineLoading = true;
  panel.replaceChildren(h('p', {class: 'empty', role: 'status'}, 'Loading the engine view'));
  try {
    await loadStyle('page/engine.css');
    const address = './engine.js';
    app.engine = await import(app.engineTries ? `${address}?try=${app.engineTries}` : address);
  } finally {
    app.engineTries += 1;
    app.isEngineLoading = false;
  }
}

function showEngineFailure(panel, error) {
  const retry = () => {
    // another address helps the first file only: after that, all of them anew
    if (app.isReady && app.engineTries > 1) location.reload();
    else enterEngine();
  };
  panel.replaceChildren(h('div', {class: 'empty', role: 'alert'},
    h('p', {}, `The engine view cannot be loaded: ${error.message}`),
    h('p', {}, 'It is tried again when the server is back.'),
    h('button', {type: 'button', class: 'button', onclick: retry}, 'Retry')));
}

async function leaveEngine() {
  const panel = byId('panel-engine');
  if (!panel.dataset.mounted) return;
  delete panel.dataset.mounted;
  app.engine.unmount();
}

function loadStyle(href) {
  if (document.querySelector(`link[href="${href}"]`)) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const link = h('link', {rel: 'stylesheet', href, onload: resolve, onerror: () => {
      link.remove();
      reject(new Error('the server cannot be reached'));
    }});
    document.head.append(link);
  });
}

// Theme -----------------------------------------------------------------------------------------

function currentTheme() {
  return document.documentElement.dataset.theme ?? 'auto';
}

function setTheme(name) {
  if (name === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem('octavo.theme', name);
  } catch {
    // kept for this visit only
  }
}

function themeButton() {
  const button = iconButton('auto', '', () => {
    setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);
    show();
  }, {id: 'theme'});
  const show = () => {
    const label = `Theme: ${currentTheme()}`;
    button.replaceChildren(icon(currentTheme()));
    button.setAttribute('aria-label', label);
    button.title = label;
  };
  show();
  return button;
}

// The server's state and the key ----------------------------------------------------------------

function showState(kind, text) {
  byId('dot').dataset.kind = kind;
  if (byId('state').textContent !== text) byId('state').textContent = text;
  byId('model').textContent = app.model;
}

/** Asks the server how it is. */
async function check() {
  const id = ++checks;
  clearTimeout(timer);
  let failure = null;
  const options = {isTold: false, signal: AbortSignal.timeout(ANSWER_MS)};
  try {
    if (!app.model) {
      const {data: [card]} = await (await call('v1/models', options)).json();
      [app.model, app.maxModelLen] = [card.id, card.max_model_len];
    }
    await call('ready', options);
  } catch (error) {
    failure = error;
  }
  if (id === checks) learn(failure, true);  // else there is newer news
}

/** The one place that knows the state of the server, whoever found out: null for ready. A poll
    asks once for another key than the one that is refused. */
function learn(error, isPoll = false) {
  if (error !== null && !(error instanceof ApiError)) {
    error = new ApiError(`The server's answer makes no sense: ${error.message}`, {status: 500});
  }
  checks += 1;
  const wasReady = app.isReady;
  app.isReady = error === null;
  app.isUnknown = false;
  // what comes back may serve another model; asking for it is what tries a key
  if (error?.status === 0 || error?.status === 401) app.model = '';
  if (error === null) showState('good', 'ready');
  else showFailure(error);
  app.engine?.setConnection(app.isReady);
  clearTimeout(timer);
  timer = setTimeout(check, app.isReady || document.hidden ? CALM_MS : EAGER_MS);
  if (error?.status === 401 && !(isPoll && askedFor === apiKey())) askForKey();
  if (app.isReady && !wasReady) onBack();
}

/** The server is there, for the first time or again: what failed for want of it is done anew. */
function onBack() {
  app.chat.retryRefused();
  if (shownTab() === 'engine' && app.engine === null) enterEngine();
}

function showFailure(error) {
  if (error.status === 401) showState('bad', 'needs an API key');
  else if (error.code === 'engine_loading' || error.status === 503) {
    showState('busy', error.code === 'engine_loading' ? 'loading the model' : 'not ready');
  } else showState('bad', error.status ? error.message : 'not reachable');
}

/** Every call of the page tells of the server's state, the polling only fills the gaps. */
function onCallOutcome(error) {
  if (error?.status === 0 || error?.status === 401) learn(error);
  else if ((error?.status !== 503) !== app.isReady) check();
}

function onEngineStream(isLive) {
  if (isLive === app.isReady) return;
  if (!isLive) app.model = '';  // perhaps it was the key
  check();
}

function askForKey() {
  keyButton.hidden = false;
  if (keyDialog !== null) return;
  askedFor = apiKey();
  const wasSent = askedFor !== '';
  const input = h('input', {type: 'password', id: 'api-key', autocomplete: 'off', required: true,
    spellcheck: false, 'aria-describedby': 'api-key-note'});
  const note = h('p', {id: 'api-key-note', class: wasSent ? 'field-error' : 'hint', role: 'status'},
    wasSent ? 'The server does not know this key. Check it and try again.'
      : 'This server was started with --api-key. The key stays in this browser tab.');
  const submit = (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!/^[!-~]+$/.test(key)) {
      note.className = 'field-error';
      note.textContent = 'A key has no spaces and only ASCII characters.';
      input.focus();
      return;
    }
    setApiKey(key);
    [app.model, askedFor] = ['', null];
    keyDialog.close();
    check();
  };
  keyDialog = dialog('API key', h('form', {onsubmit: submit, class: 'stack'},
    h('label', {htmlFor: 'api-key'}, 'Key'), input, note,
    h('div', {class: 'row end'},
      wasSent ? h('button', {type: 'button', class: 'button', onclick: () => {
        setApiKey('');
        keyDialog.close();
        check();
      }}, 'Forget the key') : null,
      h('button', {class: 'button primary'}, 'Use this key'))),
  {onclose: () => { keyDialog = null; }});
  if (wasSent) input.setAttribute('aria-invalid', 'true');
  input.focus();
}

// Help ------------------------------------------------------------------------------------------

const KEYS = [
  ['Enter', 'send the message'],
  ['Shift + Enter', 'a new line'],
  ['Esc', 'stop the answer; leave an edit; close a panel'],
  ['← →', 'move between tabs, or between the tokens of a heat-map'],
  ['Enter on a token', 'keep its alternatives open'],
];

function showHelp() {
  dialog('Help', h('div', {class: 'stack'},
    h('table', {class: 'keys'}, h('caption', {class: 'unseen'}, 'Keys'), h('tbody', {},
      KEYS.map(([key, what]) => h('tr', {}, h('th', {scope: 'row'}, h('kbd', {}, key)),
        h('td', {}, what))))),
    h('p', {}, 'Conversations stay in this browser and are sent to this server only. Editing a ',
      'message or asking again makes a new branch: ‹ 1/2 › switches between them.'),
    h('p', {}, h('a', {href: 'docs'}, 'The routes of the API'))));
}

// Start -----------------------------------------------------------------------------------------

function start() {
  keyButton = iconButton('key', 'API key', askForKey, {hidden: apiKey() === '', id: 'key'});
  byId('tools').append(keyButton, themeButton(),
    iconButton('help', 'Help', showHelp, {id: 'help'}));
  for (const tab of TABS) {
    byId(`tab-${tab}`).addEventListener('click', () => selectTab(tab));
    byId(`tab-${tab}`).addEventListener('keydown', onTabKey);
  }
  app.chat = mountChat(byId('panel-chat'), app);
  onOutcome(onCallOutcome);
  addEventListener('hashchange', () => showTab(shownTab()));
  document.addEventListener('visibilitychange', () => { if (!document.hidden) check(); });
  showTab(shownTab());
  check();
}

start();
