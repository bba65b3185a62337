// The panel with what a conversation asks of the model: system prompt, sampling, JSON Schema.

import {DEFAULTS} from './chat-store.js';
import {schemaFault, settingsFault} from './chat-stream.js';
import {h, iconButton} from './dom.js';

// name, label, least, most, step, what an empty field means
const FIELDS = [
  ['temperature', 'Temperature', 0, 2, 0.1, 'model’s'],
  ['max_tokens', 'Max tokens', 1, undefined, 1, 'no limit'],
  ['top_p', 'Top p', 0, 1, 0.05, '1'],
  ['top_k', 'Top k', -1, undefined, 1, 'all'],
  ['min_p', 'Min p', 0, 1, 0.01, '0'],
  ['repetition_penalty', 'Repetition', 0.1, 2, 0.05, '1'],
  ['presence_penalty', 'Presence', -2, 2, 0.1, '0'],
  ['frequency_penalty', 'Frequency', -2, 2, 0.1, '0'],
];
const EXAMPLE = {
  type: 'object',
  properties: {city: {type: 'string'}, country: {type: 'string'},
    population: {type: 'integer', minimum: 0}},
  required: ['city', 'country', 'population'],
  additionalProperties: false,
};

/** How many settings differ from those of a new conversation. */
export function numSet(settings) {
  const names = new Set([...Object.keys(settings), ...Object.keys(DEFAULTS)]);
  names.delete('heat');
  return [...names].filter((name) => settings[name] !== DEFAULTS[name]).length;
}

export class SettingsPanel {
  #settings = {};
  #onChange;
  #fields = new Map();
  #faults = new Map();

  /** onChange(): a setting was changed, in the object given to `show`. */
  constructor({onChange, onClose}) {
    this.#onChange = onChange;
    const schema = this.#text('schema', 'JSON Schema', {rows: 7, class: 'mono', spellcheck: false,
      placeholder: 'Empty: free text'}, 'The answer is held to it, token by token.');
    this.element = h('aside', {class: 'side settings', id: 'chat-settings', 'aria-label': 'Settings',
      tabIndex: -1},
    h('div', {class: 'side-head'}, h('h2', {}, 'Settings'),
      iconButton('close', 'Close the settings', onClose)),
    h('div', {class: 'side-body stack'},
      this.#text('system', 'System prompt', {rows: 4, placeholder: 'The model’s own'}),
      h('fieldset', {class: 'fields'}, h('legend', {}, 'Sampling'),
        FIELDS.map((field) => this.#number(...field)), this.#seed()),
      schema,
      h('div', {class: 'row'},
        h('button', {type: 'button', class: 'button', onclick: () => this.#example()}, 'Example schema'),
        h('button', {type: 'button', class: 'button', onclick: () => this.#reset()}, 'Reset'))));
  }

  /** Shows these settings, and writes changes into them. */
  show(settings) {
    this.#settings = settings;
    for (const [name, field] of this.#fields) {
      field.value = settings[name] ?? '';
      this.#tell(name, '');
    }
    this.#checkSchema();
  }

  /** Whether they can be sent; if not, the reason stands at its field, which has the focus. */
  check() {
    for (const [name, field] of this.#fields) {
      if (field.validity.badInput) return this.#refuse(name, 'This is not a number.');
    }
    const fault = settingsFault(this.#settings);
    return fault === null || this.#refuse(fault.field, fault.message);
  }

  /** Shows what the server said about a field of the request; false if it is none of these. */
  tell(param, message) {
    const name = param?.startsWith('response_format') ? 'schema' : param;
    if (!this.#fields.has(name)) return false;
    this.#tell(name, message);
    return true;
  }

  #refuse(name, message) {
    this.#tell(name, message);
    // once the panel is open
    setTimeout(() => this.#fields.get(name).focus(), 0);
    return false;
  }

  #tell(name, message) {
    const field = this.#fields.get(name);
    this.#faults.get(name).textContent = message;
    if (message) field.setAttribute('aria-invalid', 'true');
    else field.removeAttribute('aria-invalid');
  }

  #text(name, label, properties, hint = '') {
    const field = h('textarea', {...properties, oninput: () => {
      this.#set(name, field.value);
      if (name === 'schema') this.#checkSchema();
    }});
    return this.#labelled(name, label, field, hint);
  }

  #number(name, label, min, max, step, placeholder) {
    const field = h('input', {type: 'number', inputMode: 'decimal', placeholder,
      oninput: () => this.#set(name, field.value === '' ? undefined : Number(field.value))});
    field.step = step;
    field.min = min;
    if (max !== undefined) field.max = max;
    return this.#labelled(name, label, field);
  }

  #seed() {
    const field = h('input', {type: 'text', inputMode: 'numeric', placeholder: 'random',
      autocomplete: 'off', oninput: () => this.#set('seed', field.value)});
    return this.#labelled('seed', 'Seed', field);
  }

  #labelled(name, label, field, hint = '') {
    field.id = `setting-${name}`;
    const fault = h('p', {class: 'field-error', id: `fault-${name}`, 'aria-live': 'polite'});
    field.setAttribute('aria-describedby', hint ? `fault-${name} hint-${name}` : fault.id);
    this.#fields.set(name, field);
    this.#faults.set(name, fault);
    return h('div', {class: 'field'}, h('label', {htmlFor: field.id}, label), field, fault,
      hint ? h('p', {class: 'hint', id: `hint-${name}`}, hint) : null);
  }

  #set(name, value) {
    if (value === undefined || value === '') delete this.#settings[name];
    else this.#settings[name] = value;
    this.#tell(name, '');
    this.#onChange();
  }

  #checkSchema() {
    this.#tell('schema', schemaFault(this.#settings.schema ?? ''));
  }

  #example() {
    this.#settings.schema = JSON.stringify(EXAMPLE, null, 2);
    this.show(this.#settings);
    this.#onChange();
  }

  #reset() {
    for (const name of this.#fields.keys()) delete this.#settings[name];
    Object.assign(this.#settings, DEFAULTS);
    this.show(this.#settings);
    this.#onChange();
  }
}
