// Conversations: a tree of messages each, kept in the browser's storage. Knows no elements.
//
// A conversation is {id, title, created, updated, settings, nodes}. nodes['root'] is above the
// first messages; every node has `children` (ids) and `shown` (the index of the child on the path
// that is seen). An answer has `state`: 'streaming', 'done', 'stopped' or 'error'.

const PREFIX = 'octavo.chat.';
const MAX_CONVERSATIONS = 200;
const MAX_NODES = 1000;
const MAX_TITLE = 80;
const MAX_TEXT = 400_000;
// Browsers keep about 5 million characters for one origin; some room stays for the other views.
const MAX_CHARS = 4_000_000;
const MAX_IMPORT_BYTES = 20_000_000;
const FORMAT = 'octavo-conversations';

export const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'presence_penalty',
  'frequency_penalty', 'repetition_penalty'];
const TEXTS = ['system', 'seed', 'schema'];
const STATES = ['done', 'stopped', 'error'];

// Where new conversations start: small models ramble at the API's temperature of 1 and without a
// bound.
export const DEFAULTS = {temperature: 0.6, min_p: 0.05, max_tokens: 1024};

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function newConversation(settings = DEFAULTS) {
  const now = Date.now();
  return {id: newId(), title: '', created: now, updated: now, settings: {...settings},
    nodes: {root: {id: 'root', parent: null, role: 'root', children: [], shown: 0}}};
}

/** The nodes that are seen, first to last, without the root. */
export function shownPath(conversation) {
  const path = [];
  let node = conversation.nodes.root;
  while (node.children.length) {
    node = conversation.nodes[node.children[node.shown]];
    path.push(node);
  }
  return path;
}

/** The nodes from the first message down to this one. */
export function pathTo(conversation, node) {
  const path = [];
  for (let at = node; at.parent !== null; at = conversation.nodes[at.parent]) path.unshift(at);
  return path;
}

/** A new last child, which becomes the one that is seen. */
export function addChild(conversation, parentId, role, content) {
  if (Object.keys(conversation.nodes).length > MAX_NODES) {
    throw new Error(`A conversation holds up to ${MAX_NODES} messages: start a new one.`);
  }
  const parent = conversation.nodes[parentId];
  const node = {id: newId(), parent: parentId, role, content, children: [], shown: 0};
  conversation.nodes[node.id] = node;
  parent.children.push(node.id);
  parent.shown = parent.children.length - 1;
  if (!conversation.title && role === 'user') conversation.title = titleOf(content);
  return node;
}

/** Takes a message away, and all that answers it. Returns what puts it back, which gives false
    where the message above it is gone by then. */
export function removeNode(conversation, node) {
  const {nodes} = conversation;
  const siblings = nodes[node.parent].children;
  const at = siblings.indexOf(node.id);
  const removed = [];
  const rest = [node.id];
  while (rest.length) {
    const id = rest.pop();
    removed.push(nodes[id]);
    rest.push(...nodes[id].children);
    delete nodes[id];
  }
  siblings.splice(at, 1);
  nodes[node.parent].shown = Math.max(0, Math.min(nodes[node.parent].shown, siblings.length - 1));
  return () => {
    const parent = conversation.nodes[node.parent];
    if (!parent) return false;
    for (const one of removed) conversation.nodes[one.id] = one;
    parent.shown = Math.min(at, parent.children.length);
    parent.children.splice(parent.shown, 0, node.id);
    return true;
  };
}

export function titleOf(text) {
  const line = text.trim().split('\n')[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1).trimEnd()}…` : line;
}

/** All conversations of this browser. `onLoss(text)` hears what had to go to make room. */
export class Store {
  constructor(onLoss) {
    this.onLoss = onLoss;
    this.conversations = new Map();
    this.canKeep = true;
    this.reload();
  }

  /** Reads what is kept; another tab may have changed it. Those in `held` stay as they are. */
  reload(held = new Set()) {
    const found = new Map();
    for (const id of held) {
      if (this.conversations.has(id)) found.set(id, this.conversations.get(id));
    }
    for (const key of storedKeys()) {
      const id = key.slice(PREFIX.length);
      const conversation = found.has(id) ? null : cleaned(parsed(localStorage.getItem(key)), id);
      if (conversation) found.set(conversation.id, conversation);
    }
    this.conversations = found;
  }

  /** Newest first. */
  list() {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id) {
    return this.conversations.get(id);
  }

  save(conversation) {
    this.conversations.set(conversation.id, conversation);
    const text = JSON.stringify(conversation);
    this.#makeRoom(conversation.id, text.length);
    while (!this.#write(conversation.id, text)) {
      if (!this.#dropOldest(conversation.id)) {
        if (this.canKeep) {
          this.onLoss('This browser keeps nothing for the page: conversations end with this tab.');
        }
        this.canKeep = false;
        return;
      }
    }
  }

  remove(id) {
    this.conversations.delete(id);
    try {
      localStorage.removeItem(PREFIX + id);
    } catch {
      // nothing is kept anyway
    }
  }

  /** The text of a file with these conversations. */
  exported(conversations) {
    return JSON.stringify({format: FORMAT, version: 1, conversations}, null, 1);
  }

  /** Adds the conversations of such a text under new ids. Throws Error with a reason. */
  imported(text) {
    if (text.length > MAX_IMPORT_BYTES) throw new Error('The file is too large.');
    const file = parsed(text);
    if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
      throw new Error('The file holds no conversations exported from this page.');
    }
    const found = file.conversations.slice(0, MAX_CONVERSATIONS)
      .map((raw) => cleaned(raw, newId())).filter((one) => one !== null);
    if (found.length === 0) throw new Error('No conversation of the file can be read.');
    for (const conversation of found) this.save(conversation);
    return found;
  }

  #write(id, text) {
    try {
      localStorage.setItem(PREFIX + id, text);
      return true;
    } catch {
      return false;
    }
  }

  #makeRoom(id, size) {
    while (this.conversations.size > MAX_CONVERSATIONS && this.#dropOldest(id));
    const others = () => storedKeys().filter((key) => key !== PREFIX + id)
      .reduce((sum, key) => sum + localStorage.getItem(key).length, 0);
    while (others() + size > MAX_CHARS && this.#dropOldest(id));
  }

  /** First the probabilities of old answers go, which are the most of it, then conversations. */
  #dropOldest(exceptId) {
    const others = this.list().filter((one) => one.id !== exceptId).reverse();
    const heavy = others.find((one) => Object.values(one.nodes).some((node) => node.tokens));
    if (heavy) {
      for (const node of Object.values(heavy.nodes)) delete node.tokens;
      this.#write(heavy.id, JSON.stringify(heavy));
      this.onLoss('The browser\'s storage is full: the token probabilities of an old conversation '
        + 'were removed.');
      return true;
    }
    if (others.length === 0) return false;
    this.remove(others[0].id);
    this.onLoss(`The browser's storage is full: the oldest conversation, “${others[0].title}”, `
      + 'was removed.');
    return true;
  }
}

function storedKeys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  } catch {
    return [];
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A conversation with nothing in it but what this page writes; null if it cannot be one. */
function cleaned(raw, id) {
  const nodes = raw?.nodes;
  if (!nodes || typeof nodes !== 'object' || !nodes.root) return null;
  const conversation = newConversation();
  conversation.id = id;
  conversation.title = text(raw.title).slice(0, MAX_TITLE);
  conversation.created = time(raw.created);
  conversation.updated = time(raw.updated);
  conversation.settings = cleanSettings(raw.settings ?? {});
  const rest = [['root', 'root']];
  let count = 0;
  while (rest.length) {
    const [rawId, newParent] = rest.shift();
    const parent = conversation.nodes[newParent];
    const children = Array.isArray(nodes[rawId].children) ? nodes[rawId].children : [];
    for (const childId of children) {
      const node = Object.hasOwn(nodes, childId) && ++count <= MAX_NODES
        ? cleanNode(nodes[childId], newParent) : null;
      if (node === null) continue;
      conversation.nodes[node.id] = node;
      parent.children.push(node.id);
      rest.push([childId, node.id]);
    }
    const shown = nodes[rawId].shown;
    const last = Math.max(0, parent.children.length - 1);
    parent.shown = Number.isInteger(shown) ? Math.min(Math.max(shown, 0), last) : last;
  }
  return conversation;
}

function cleanNode(raw, parent) {
  if (raw?.role !== 'user' && raw?.role !== 'assistant') return null;
  const node = {id: newId(), parent, role: raw.role, content: text(raw.content), children: [],
    shown: 0};
  if (raw.role === 'user') return node;
  // one that was streaming when the page was left is a stopped one
  node.state = STATES.includes(raw.state) ? raw.state : 'stopped';
  if (raw.reasoning) node.reasoning = text(raw.reasoning);
  if (raw.error) node.error = text(raw.error);
  if (raw.isJson) node.isJson = true;
  if (raw.meta && typeof raw.meta === 'object') {
    node.meta = {};
    for (const [name, value] of Object.entries(raw.meta).slice(0, 20)) {
      if (typeof value === 'number' || typeof value === 'string') node.meta[name] = value;
    }
  }
  if (Array.isArray(raw.tokens) && raw.tokens.every(isToken)) node.tokens = raw.tokens;
  return node;
}

function isToken(token) {
  const isPair = (pair) => Array.isArray(pair) && typeof pair[0] === 'string'
    && typeof pair[1] === 'number';
  return isPair(token) && Array.isArray(token[2]) && token[2].every(isPair);
}

function cleanSettings(raw) {
  const settings = {heat: raw.heat === true};
  for (const name of NUMBERS) if (Number.isFinite(raw[name])) settings[name] = raw[name];
  for (const name of TEXTS) if (raw[name]) settings[name] = text(raw[name]);
  return settings;
}

function text(value) {
  return typeof value === 'string' ? value.slice(0, MAX_TEXT) : '';
}

function time(value) {
  return Number.isFinite(value) ? value : Date.now();
}
