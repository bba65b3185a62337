// One message as an element: text or heat-map, figures, and what can be done with it.

import {codeBlock, renderMarkdown} from './chat-markdown.js';
import {TokenMap, perplexity} from './chat-tokens.js';
import {copyButton, h, iconButton} from './dom.js';

export class MessageView {
  #actions;
  #context;
  #map = null;

  /** context: {heat, isBusy, tip, siblings: [index, count]}. actions: edit(node, text),
      regenerate(node), remove(node), turn(node, by), retry(node). */
  constructor(node, context, actions) {
    this.node = node;
    this.#context = context;
    this.#actions = actions;
    const isUser = node.role === 'user';
    this.body = h('div', {class: 'body'});
    this.foot = h('div', {class: 'foot'});
    this.element = h('article', {class: `message ${node.role}`, 'data-id': node.id,
      'aria-label': isUser ? 'You' : 'Answer'}, this.body, this.foot);
    this.update();
    this.updateFoot();
  }

  /** Shows what the node holds. Cheap for an answer that grew. */
  update() {
    const {node} = this;
    if (node.role === 'user') {
      this.body.textContent = node.content;
    } else if (this.#context.heat && node.tokens?.length) {
      this.#showTokens();
    } else {
      this.#showText();
    }
  }

  updateFoot() {
    const {node} = this;
    const children = [];
    if (node.state === 'error') children.push(this.#error());
    if (node.state !== 'streaming') {
      children.push(h('div', {class: 'actions', role: 'group', 'aria-label': 'Message'},
        this.#branches(), copyButton('Copy', () => node.content), this.#changes()));
    }
    const figures = node.role === 'assistant' ? figuresOf(node, this.#context.heat) : '';
    if (figures) children.push(h('p', {class: 'figures'}, figures));
    this.foot.replaceChildren(...children);
  }

  setBusy(isBusy) {
    this.#context.isBusy = isBusy;
    if (!this.body.querySelector('.editor')) this.updateFoot();
  }

  #showText() {
    const {node} = this;
    const wanted = [];
    this.#map = null;
    if (node.reasoning) {
      const details = this.body.querySelector('details.reasoning')
        ?? h('details', {class: 'reasoning'}, h('summary', {}, 'Reasoning'), h('p'));
      details.lastChild.textContent = node.reasoning;
      wanted.push(details);
    }
    const text = this.body.querySelector('.text') ?? h('div', {class: 'text'});
    const json = node.isJson && node.state !== 'streaming' ? pretty(node.content) : null;
    if (json !== null) text.replaceChildren(codeBlock(json, 'json'));
    else renderMarkdown(text, node.content);
    wanted.push(text);
    if (node.state === 'streaming' && !node.content) wanted.push(h('span', {class: 'waiting', role: 'img', 'aria-label': 'waiting for the first token'}));
    // elements that stay are not moved: an open <details> stays open, a selection lasts
    for (const child of [...this.body.children]) if (!wanted.includes(child)) child.remove();
    wanted.forEach((child, i) => {
      if (this.body.children[i] !== child) this.body.insertBefore(child, this.body.children[i] ?? null);
    });
  }

  #showTokens() {
    if (this.#map === null) {
      this.#map = new TokenMap(this.#context.tip);
      this.body.replaceChildren(this.#map.element);
    }
    this.#map.update(this.node.tokens);
  }

  #error() {
    const {node} = this;
    return h('div', {class: 'error', role: 'alert'}, h('p', {}, node.error),
      this.#context.isBusy ? null
        : h('button', {type: 'button', class: 'button', onclick: () => this.#actions.retry(node)}, 'Retry'));
  }

  #branches() {
    const [index, count] = this.#context.siblings;
    if (count < 2) return null;
    const turn = (by) => () => this.#actions.turn(this.node, by);
    return h('div', {class: 'branches'},
      iconButton('left', 'Previous version', turn(-1), {disabled: index === 0, 'data-turn': '-1'}),
      h('span', {'aria-label': `Version ${index + 1} of ${count}`, role: 'img'}, `${index + 1}/${count}`),
      iconButton('right', 'Next version', turn(1), {disabled: index === count - 1, 'data-turn': '1'}));
  }

  #changes() {
    const {node} = this;
    if (this.#context.isBusy) return [];
    const again = node.role === 'assistant' || node.children.length === 0;
    return [
      node.role === 'user' ? iconButton('edit', 'Edit', () => this.#edit()) : null,
      again ? iconButton('redo', node.role === 'user' ? 'Answer' : 'Regenerate',
        () => this.#actions.regenerate(node)) : null,
      iconButton('trash', 'Delete', () => this.#actions.remove(node)),
    ];
  }

  #edit() {
    const {node} = this;
    const finish = (text) => {
      if (text !== null && text.trim()) {
        this.#actions.edit(node, text);
        return;
      }
      this.element.classList.remove('editing');
      this.update();
      this.updateFoot();
      this.foot.querySelector('[aria-label=Edit]')?.focus();
    };
    const area = h('textarea', {class: 'editor', value: node.content, 'aria-label': 'Edit the message',
      rows: Math.min(12, node.content.split('\n').length + 1),
      onkeydown: (event) => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          finish(null);
        } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          finish(area.value);
        }
      }});
    this.element.classList.add('editing');
    this.body.replaceChildren(area);
    this.foot.replaceChildren(h('div', {class: 'row end'},
      h('button', {type: 'button', class: 'button', onclick: () => finish(null)}, 'Cancel'),
      h('button', {type: 'button', class: 'button primary', onclick: () => finish(area.value)}, 'Send')));
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** The line of figures under an answer. */
function figuresOf({meta = {}, state, tokens}, heat) {
  const about = meta.is_estimate ? '≈ ' : '';
  const parts = [
    meta.tokens_per_s !== undefined && `${about}${meta.tokens_per_s} tokens/s`,
    meta.ttft_ms !== undefined && `first token ${duration(meta.ttft_ms)}`,
    meta.completion_tokens !== undefined && `${about}${meta.completion_tokens} tokens`,
    meta.prompt_tokens !== undefined
      && `prompt ${meta.prompt_tokens} (${meta.cached_tokens ?? 0} cached)`,
    heat && tokens?.length && `perplexity ${perplexity(tokens).toFixed(2)}`,
    state === 'stopped' && 'stopped',
    meta.finish === 'length' && 'cut at the length limit',
    meta.seed !== undefined && `seed ${meta.seed}`,
    heat && state === 'done' && !tokens?.length && 'no probabilities: it was made without the heat-map',
  ];
  return parts.filter(Boolean).join(' · ');
}

function duration(ms) {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(2)} s`;
}
