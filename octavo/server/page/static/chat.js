// The Chat tab: joins the conversations, the thread, the composer and the side panels.

import {ApiError} from './api.js';
import {ConversationList} from './chat-list.js';
import {MessageView} from './chat-message.js';
import {SettingsPanel, numSet} from './chat-settings.js';
import {Store, addChild, newConversation, pathTo, removeNode, shownPath} from './chat-store.js';
import {requestBody, streamAnswer} from './chat-stream.js';
import {TokenTip, legend} from './chat-tokens.js';
import {announce, h, icon, iconButton} from './dom.js';

const CURRENT = 'octavo.current';
const MAX_STREAMS = 4;
const NEAR_END_PX = 80;
const NOTICE_MS = 10000;
const MAX_ANNOUNCED = 600;
const NEEDS_KEY = 'The server wants an API key. The message is sent again once the key is given.';
const SUGGESTIONS = ['What is the capital of France?', 'Write a haiku about paper.',
  'Explain in two sentences what a cache is.'];
const WIDE = matchMedia('(min-width: 1100px)');

/** Builds the view; app: {model, isReady}, which may change later. */
export function mountChat(panel, app) {
  const chat = new Chat(app);
  panel.append(chat.element);
  chat.open(remembered());
  return {retryRefused: () => chat.retryRefused()};
}

class Chat {
  #app;
  #store;
  #current;
  #views = new Map();
  #streams = new Map();
  #tip = new TokenTip();
  #frame = 0;

  constructor(app) {
    this.#app = app;
    this.#store = new Store((text) => this.#notice(text));
    this.#build();
    addEventListener('storage', (event) => this.#onOtherTab(event));
    addEventListener('pagehide', () => this.#keepAll());
    document.addEventListener('keydown', (event) => this.#onEscape(event));
  }

  #build() {
    this.list = new ConversationList({
      open: (id) => { this.open(id); this.#closeIfNarrow('list'); },
      create: () => { this.open(null); this.#closeIfNarrow('list'); this.input.focus(); },
      rename: (id, title) => { this.#store.get(id).title = title; this.#keep(this.#store.get(id)); this.#showTitle(); },
      remove: (id) => this.#removeConversation(id),
      exportOne: (id) => this.#download([this.#store.get(id)]),
      exportAll: () => this.#download(this.#store.list()),
      importFile: (file) => this.#import(file),
      close: () => this.#setPanel('list', false),
    });
    this.settings = new SettingsPanel({
      onChange: () => { this.#keepIfStarted(); this.#showTitle(); },
      onClose: () => { this.#setPanel('settings', false); this.settingsButton.focus(); },
    });
    this.thread = h('div', {class: 'thread', tabIndex: 0, role: 'region', 'aria-label': 'Messages',
      onscroll: () => { this.#tip.follow(this.thread); this.#showJump(); }});
    this.jump = iconButton('down', 'To the latest', () => this.#toEnd(), {class: 'icon-button jump', hidden: true});
    this.notices = h('div', {class: 'notices', role: 'status'});
    this.backdrop = h('div', {class: 'backdrop', hidden: true, onclick: () => this.#closePanels()});
    this.element = h('div', {class: 'chat'}, this.list.element,
      h('div', {class: 'middle'}, this.#head(), this.thread, this.jump, this.notices, this.#composer()),
      this.settings.element, this.backdrop, this.#tip.element);
    this.#setPanel('list', WIDE.matches);
    this.#setPanel('settings', false);
    WIDE.addEventListener('change', () => this.#setPanel('list', WIDE.matches));
  }

  #head() {
    this.listButton = iconButton('list', 'Conversations', () => this.#togglePanel('list'), {'aria-controls': 'chat-list'});
    this.settingsButton = iconButton('sliders', 'Settings', () => this.#togglePanel('settings'), {'aria-controls': 'chat-settings'});
    this.title = h('h2', {class: 'title'});
    this.badge = h('span', {class: 'badge', hidden: true});
    this.heatButton = h('button', {type: 'button', class: 'chip', 'aria-pressed': 'false',
      title: 'Colour each token by its probability', onclick: () => this.#toggleHeat()}, 'Heat-map');
    return h('div', {class: 'head'}, this.listButton,
      iconButton('plus', 'New conversation', () => { this.open(null); this.input.focus(); }),
      this.title, this.badge, this.heatButton, this.settingsButton);
  }

  #composer() {
    this.input = h('textarea', {rows: 1, placeholder: 'Message', 'aria-label': 'Message', id: 'message',
      enterKeyHint: 'send', oninput: () => this.#grow(), onkeydown: (event) => {
        if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.#send();
        }
      }});
    this.sendButton = h('button', {type: 'button', class: 'send', 'aria-label': 'Send',
      onclick: () => (this.#stream() ? this.#stop() : this.#send())}, icon('send'));
    return h('div', {class: 'composer'}, h('div', {class: 'box'}, this.input, this.sendButton),
      h('p', {class: 'hint keys-hint'}, 'Enter sends, Shift + Enter makes a new line, Esc stops'));
  }

  // Conversations ---------------------------------------------------------------------------------

  /** Shows a conversation; a new one for null or an id that is gone. */
  open(id) {
    const isFresh = this.#current && !this.#store.get(this.#current.id);
    this.#current = this.#store.get(id)
      ?? (isFresh ? this.#current : newConversation(this.#settingsOfNew()));
    remember(this.#current.id);
    this.settings.show(this.#current.settings);
    this.renderThread();
    this.#toEnd();
  }

  /** As in the conversation before, but for the form of the answers. */
  #settingsOfNew() {
    if (!this.#current) return undefined;
    const settings = {...this.#current.settings};
    delete settings.schema;
    return settings;
  }

  #keep(conversation) {
    this.#store.save(conversation);
    this.#showList();
  }

  #keepIfStarted() {
    if (this.#store.get(this.#current.id)) this.#store.save(this.#current);
  }

  #keepAll() {
    for (const id of this.#streams.keys()) this.#store.save(this.#store.get(id));
  }

  #removeConversation(id) {
    const conversation = this.#store.get(id);
    this.#streams.get(id)?.controller.abort();
    this.#store.remove(id);
    if (this.#current.id === id) {
      this.#current = newConversation();
      this.open(this.#store.list()[0]?.id ?? null);
    }
    this.#showList();
    this.#notice(`“${conversation.title}” was deleted.`, () => {
      this.#keep(conversation);
      this.open(id);
    });
  }

  #download(conversations) {
    if (conversations.length === 0) {
      this.#notice('There is no conversation to export yet.');
      return;
    }
    const blob = new Blob([this.#store.exported(conversations)], {type: 'application/json'});
    const address = URL.createObjectURL(blob);
    h('a', {href: address, download: `octavo-${new Date().toISOString().slice(0, 10)}.json`}).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  async #import(file) {
    try {
      const found = this.#store.imported(await file.text());
      this.open(found[0].id);
      this.#notice(found.length === 1 ? '1 conversation imported.' : `${found.length} conversations imported.`);
    } catch (error) {
      this.#notice(`Not imported: ${error.message}`);
    }
  }

  #onOtherTab(event) {
    if (event.key !== null && !event.key.startsWith('octavo.chat.')) return;
    const wasKept = this.#store.get(this.#current.id) !== undefined;
    this.#store.reload(new Set(this.#streams.keys()));
    const isEditing = this.thread.querySelector('.editor') !== null;
    if (wasKept && !this.#stream() && !isEditing) this.open(this.#current.id);
    else this.#showList();
  }

  // The thread ------------------------------------------------------------------------------------

  renderThread() {
    const {scrollTop} = this.thread;
    this.#tip.hide();
    this.#views.clear();
    const {nodes, settings} = this.#current;
    const isBusy = this.#stream() !== undefined;
    const actions = {
      edit: (node, text) => this.#answer(() => addChild(this.#current, node.parent, 'user', text)),
      regenerate: (node) => this.#answer(() => (node.role === 'user' ? node : nodes[node.parent])),
      retry: (node) => this.#retry(node),
      remove: (node) => this.#removeMessage(node),
      turn: (node, by) => this.#turn(node, by),
    };
    const path = shownPath(this.#current);
    for (const node of path) {
      const {children, shown} = nodes[node.parent];
      this.#views.set(node.id, new MessageView(node, {heat: settings.heat, isBusy, tip: this.#tip,
        siblings: [shown, children.length]}, actions));
    }
    this.thread.replaceChildren(path.length ? h('div', {class: 'messages'},
      settings.heat && path.some((node) => node.tokens) ? legend() : null,
      [...this.#views.values()].map((view) => view.element)) : this.#welcome());
    this.thread.scrollTop = scrollTop;
    this.#showTitle();
    this.#showList();
    this.#showSend();
    this.#showJump();
  }

  #welcome() {
    return h('div', {class: 'welcome'}, h('h3', {}, 'Ask the model'),
      h('p', {class: 'hint'}, 'It runs on the machine that serves this page.'),
      h('div', {class: 'suggestions'}, SUGGESTIONS.map((text) => h('button', {type: 'button', class: 'suggestion',
        onclick: () => this.#send(text)}, text))));
  }

  #turn(node, by) {
    const parent = this.#current.nodes[node.parent];
    parent.shown = Math.min(Math.max(parent.shown + by, 0), parent.children.length - 1);
    this.#keep(this.#current);
    this.renderThread();
    const foot = this.#views.get(parent.children[parent.shown]).foot;
    const [same, other] = [by, -by].map((to) => foot.querySelector(`[data-turn="${to}"]`));
    (same.disabled ? other : same).focus();
    announce(`Version ${parent.shown + 1} of ${parent.children.length}`);
  }

  #removeMessage(node) {
    const conversation = this.#current;
    const restore = removeNode(conversation, node);
    this.#keep(conversation);
    this.renderThread();
    this.thread.focus();
    this.#notice('The message was deleted.', () => {
      if (!restore()) return;
      this.#keep(conversation);
      if (this.#current !== conversation) return;
      this.renderThread();
      this.#views.get(node.id)?.element.scrollIntoView({block: 'nearest'});
    });
  }

  #toggleHeat() {
    const {settings} = this.#current;
    settings.heat = !settings.heat;
    this.#keepIfStarted();
    this.renderThread();
  }

  // Answers ---------------------------------------------------------------------------------------

  #stream() {
    return this.#streams.get(this.#current.id);
  }

  #send(text = this.input.value) {
    if (!text.trim() || this.#stream()) return;
    const last = shownPath(this.#current).at(-1) ?? this.#current.nodes.root;
    const isSent = this.#answer(() => addChild(this.#current, last.id, 'user', text));
    if (isSent && text === this.input.value) {
      this.input.value = '';
      this.#grow();
    }
  }

  #retry(node) {
    const question = this.#current.nodes[node.parent];
    // an answer with nothing in it is not worth a branch
    if (!node.content) removeNode(this.#current, node);
    this.#answer(() => question);
  }

  /** Sends the last message again if it was refused for want of a key. */
  retryRefused() {
    const last = shownPath(this.#current).at(-1);
    const isEditing = this.thread.querySelector('.editor') !== null;
    if (last?.state === 'error' && last.isRefused && !isEditing) this.#retry(last);
  }

  /** Answers the message that `ask()` gives. False if that cannot be sent. */
  #answer(ask) {
    if (this.#stream()) return false;
    if (!this.settings.check()) {
      this.#setPanel('settings', true);
      return false;
    }
    if (this.#streams.size >= MAX_STREAMS) {
      this.#notice(`${MAX_STREAMS} answers are being made already: stop one, or wait.`);
      return false;
    }
    try {
      const question = ask();
      const node = addChild(this.#current, question.id, 'assistant', '');
      node.state = 'streaming';
      this.#run(this.#current, node, pathTo(this.#current, question));
      return true;
    } catch (error) {
      this.#notice(error.message);
      return false;
    }
  }

  async #run(conversation, node, path) {
    const controller = new AbortController();
    const {settings} = conversation;
    if (settings.schema?.trim()) node.isJson = true;
    this.#streams.set(conversation.id, {controller, node});
    conversation.updated = Date.now();
    this.#store.save(conversation);
    this.renderThread();
    this.#toEnd();
    try {
      await streamAnswer(requestBody(settings, path, this.#app.model || undefined), node,
        {signal: controller.signal, onNews: () => this.#onNews(node)});
      node.state = 'done';
    } catch (error) {
      this.#failed(conversation, node, error);
    }
    this.#streams.delete(conversation.id);
    conversation.updated = Date.now();
    // it may have been deleted while it was answered
    if (this.#store.get(conversation.id) === conversation) this.#store.save(conversation);
    this.#finished(conversation, node);
  }

  #failed(conversation, node, error) {
    if (error.name === 'AbortError') {
      node.state = 'stopped';
      return;
    }
    node.state = 'error';
    node.isRefused = error.status === 401;
    node.error = node.isRefused ? NEEDS_KEY : error.message;
    if (!(error instanceof ApiError)) throw error;
    if (conversation === this.#current && this.settings.tell(error.param, error.message)) {
      this.#setPanel('settings', WIDE.matches || !this.settings.element.hidden);
    }
  }

  /** News come faster than frames. */
  #onNews(node) {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      const isNear = this.#isNearEnd();
      for (const {node: other} of this.#streams.values()) this.#views.get(other.id)?.update();
      if (isNear) this.#toEnd();
    });
    if (node.content === '' && node.tokens?.length === 1) this.#views.get(node.id)?.update();
  }

  #finished(conversation, node) {
    if (conversation === this.#current) {
      const isNear = this.#isNearEnd();
      const hadNone = this.thread.querySelector('.legend') === null;
      this.#views.get(node.id)?.update();
      for (const view of this.#views.values()) view.setBusy(false);
      if (conversation.settings.heat && hadNone && node.tokens) {
        this.thread.firstChild.prepend(legend());
      }
      this.#showSend();
      if (isNear) this.#toEnd();
    }
    this.#showList();
    if (node.state === 'done') announce(`Answer: ${node.content.slice(0, MAX_ANNOUNCED)}`);
    if (node.state === 'stopped') announce('Stopped');
  }

  #stop() {
    this.#stream()?.controller.abort();
  }

  // Small parts -----------------------------------------------------------------------------------

  #showList() {
    this.list.show(this.#store.list(), this.#current.id, new Set(this.#streams.keys()));
  }

  #showTitle() {
    const {title, settings} = this.#current;
    this.title.textContent = title || 'New conversation';
    const count = numSet(settings);
    this.badge.hidden = count === 0;
    this.badge.textContent = count === 1 ? '1 setting' : `${count} settings`;
    this.heatButton.setAttribute('aria-pressed', String(settings.heat === true));
  }

  #showSend() {
    const isBusy = this.#stream() !== undefined;
    this.sendButton.setAttribute('aria-label', isBusy ? 'Stop' : 'Send');
    this.sendButton.title = isBusy ? 'Stop (Esc)' : 'Send (Enter)';
    this.sendButton.replaceChildren(icon(isBusy ? 'stop' : 'send'));
  }

  #grow() {
    this.input.style.height = 'auto';
    this.input.style.height = `${this.input.scrollHeight + 2}px`;
  }

  #isNearEnd() {
    const {scrollHeight, scrollTop, clientHeight} = this.thread;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #toEnd() {
    this.thread.scrollTop = this.thread.scrollHeight;
    this.#showJump();
  }

  #showJump() {
    this.jump.hidden = this.#isNearEnd();
  }

  #notice(text, undo) {
    const element = h('div', {class: 'notice'}, h('span', {}, text),
      undo ? h('button', {type: 'button', class: 'text-button', onclick: () => { undo(); element.remove(); }}, 'Undo') : null,
      iconButton('close', 'Dismiss', () => element.remove()));
    this.notices.replaceChildren(element);
    setTimeout(() => element.remove(), NOTICE_MS);
  }

  // Side panels -----------------------------------------------------------------------------------

  #setPanel(name, isOpen) {
    const [panel, button] = name === 'list' ? [this.list.element, this.listButton]
      : [this.settings.element, this.settingsButton];
    panel.hidden = !isOpen;
    button.setAttribute('aria-expanded', String(isOpen));
    this.backdrop.hidden = this.list.element.hidden && this.settings.element.hidden;
  }

  #togglePanel(name) {
    const panel = name === 'list' ? this.list.element : this.settings.element;
    const isOpen = panel.hidden;
    if (isOpen && !WIDE.matches) this.#closePanels();
    this.#setPanel(name, isOpen);
    if (isOpen && !WIDE.matches) panel.focus();
  }

  #closeIfNarrow(name) {
    if (!WIDE.matches) this.#setPanel(name, false);
  }

  #closePanels() {
    this.#setPanel('list', false);
    this.#setPanel('settings', false);
  }

  #onEscape(event) {
    if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
    if (!this.element.checkVisibility() || this.#tip.hide()) return;
    if (!WIDE.matches && !this.backdrop.hidden) {
      const isList = !this.list.element.hidden;
      this.#closePanels();
      (isList ? this.listButton : this.settingsButton).focus();
    } else {
      this.#stop();
    }
  }
}

function remembered() {
  try {
    return localStorage.getItem(CURRENT);
  } catch {
    return null;
  }
}

function remember(id) {
  try {
    localStorage.setItem(CURRENT, id);
  } catch {
    // this visit only
  }
}
