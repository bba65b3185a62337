// The list of conversations: choose, rename, delete, export and import them.

import {h, icon, iconButton} from './dom.js';

export class ConversationList {
  #actions;
  #renaming = null;
  #state = {conversations: [], currentId: null, streaming: new Set()};

  /** actions: open(id), create(), rename(id, title), remove(id), exportOne(id), exportAll(),
      importFile(file), close(). */
  constructor(actions) {
    this.#actions = actions;
    this.items = h('ul', {class: 'items'});
    const file = h('input', {type: 'file', accept: 'application/json,.json', hidden: true,
      'aria-label': 'File to import', onchange: () => {
        if (file.files[0]) actions.importFile(file.files[0]);
        file.value = '';
      }});
    this.element = h('aside', {class: 'side list', id: 'chat-list', 'aria-label': 'Conversations',
      tabIndex: -1},
    h('div', {class: 'side-head'}, h('h2', {}, 'Conversations'),
      iconButton('close', 'Close the list', actions.close, {class: 'icon-button only-narrow'})),
    h('button', {type: 'button', class: 'button new', onclick: actions.create}, icon('plus'),
      'New conversation'),
    h('nav', {class: 'side-body', 'aria-label': 'Conversations'}, this.items),
    h('div', {class: 'side-foot'}, file,
      h('button', {type: 'button', class: 'text-button', onclick: () => file.click()},
        icon('upload'), 'Import'),
      h('button', {type: 'button', class: 'text-button', onclick: actions.exportAll},
        icon('download'), 'Export all')));
  }

  /** streaming: ids of those that are being answered. */
  show(conversations, currentId, streaming) {
    this.#state = {conversations, currentId, streaming};
    if (this.#renaming !== null && conversations.some((one) => one.id === this.#renaming)) return;
    this.#renaming = null;
    this.items.replaceChildren(...conversations.map((one) => this.#item(one)));
    if (conversations.length === 0) {
      this.items.append(h('li', {class: 'hint none'}, 'They stay in this browser.'));
    }
  }

  #item({id, title}) {
    const isCurrent = id === this.#state.currentId;
    const shown = title || 'New conversation';
    const button = h('button', {type: 'button', class: 'item-open',
      'aria-current': isCurrent ? 'true' : null, onclick: () => this.#actions.open(id)},
    h('span', {class: 'item-title'}, shown),
    this.#state.streaming.has(id) ? h('span', {class: 'pulse', role: 'img', 'aria-label': 'being answered'}) : null);
    return h('li', {class: isCurrent ? 'item current' : 'item'}, button,
      h('div', {class: 'item-actions'},
        iconButton('edit', `Rename ${shown}`, () => this.#rename(id, shown)),
        iconButton('download', `Export ${shown}`, () => this.#actions.exportOne(id)),
        iconButton('trash', `Delete ${shown}`, () => this.#actions.remove(id))));
  }

  #rename(id, title) {
    const at = this.#state.conversations.findIndex((one) => one.id === id);
    let isOver = false;
    const finish = (isKept) => {
      if (isOver) return;
      isOver = true;
      this.#renaming = null;
      const {conversations, currentId, streaming} = this.#state;
      if (isKept && input.value.trim()) this.#actions.rename(id, input.value.trim());
      else this.show(conversations, currentId, streaming);
      this.items.children[at]?.querySelector('.item-actions button')?.focus();
    };
    const input = h('input', {type: 'text', value: title, maxLength: 80, 'aria-label': 'New title',
      onblur: () => finish(true),
      onkeydown: (event) => {
        if (event.key === 'Enter') {
          event.preventDefault();  // or it would press the button that has the focus next
          finish(true);
        }
        if (event.key === 'Escape') {
          event.stopPropagation();
          finish(false);
        }
      }});
    this.#renaming = id;
    this.items.children[at].replaceChildren(input);
    input.focus();
    input.select();
  }
}
