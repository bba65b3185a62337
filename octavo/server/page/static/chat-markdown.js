// A small subset of Markdown as elements: paragraphs, headings, lists, quotes, code, emphasis and
// links. Made by DOM functions only, so that no text of a model ever becomes markup.

import {copyButton, h} from './dom.js';

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const LINK = /^\[([^\]\n]{1,500})\]\(\s*<?((?:https?:\/\/|mailto:)[^\s<>)]{1,2000})>?(?:\s+"[^"\n]*")?\s*\)/i;
const BARE_LINK = /^https?:\/\/[^\s<>"'`]{1,2000}/i;
const MAX_DEPTH = 8;

/** Brings `container` to show `text`. Blocks that did not change keep their elements, so that a
    growing answer costs its last block only, and a selection lasts. */
export function renderMarkdown(container, text) {
  const blocks = splitBlocks(text);
  const old = container.children;
  let same = 0;
  while (same < blocks.length && same < old.length && old[same].source === blocks[same].source) {
    same += 1;
  }
  while (old.length > same) old[same].remove();
  for (const block of blocks.slice(same)) {
    const element = blockElement(block, 0);
    element.source = block.source;
    container.append(element);
  }
}

/** A block of code with its language and a button to copy it. */
export function codeBlock(code, language) {
  return h('div', {class: 'code'},
    h('div', {class: 'code-head'}, h('span', {}, language || 'code'),
      copyButton('Copy the code', () => code)),
    h('pre', {tabIndex: 0}, h('code', {}, code)));
}

/** Lines -> [{kind, source, ...}]. */
function splitBlocks(text) {
  const lines = text.split('\n');
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at);
    block.source = `${block.kind} ${lines.slice(at, end).join('\n')}`;
    blocks.push(block);
    at = end;
  }
  return blocks;
}

function blockAt(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{kind: 'heading', level: heading[1].length, text: heading[2]}, at + 1];
  if (RULE.test(line)) return [{kind: 'rule'}, at + 1];
  if (QUOTE.test(line)) {
    const end = runEnd(lines, at, (next) => QUOTE.test(next));
    return [{kind: 'quote', text: lines.slice(at, end).map((l) => QUOTE.exec(l)[1]).join('\n')}, end];
  }
  if (ITEM.test(line)) return listAt(lines, at);
  const end = runEnd(lines, at, (next) => next.trim() && !startsBlock(next));
  return [{kind: 'paragraph', text: lines.slice(at, end).join('\n')}, end];
}

function runEnd(lines, at, belongs) {
  let end = at + 1;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return end;
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)
    || ITEM.test(line);
}

/** A fence that never closes (yet) runs to the end. */
function codeAt(lines, at, [, marks, language]) {
  const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).join('\n');
  return [{kind: 'code', language, code, isOpen: end >= lines.length}, Math.min(end + 1, lines.length)];
}

/** Items of one indentation; what is indented deeper belongs to the item above. */
function listAt(lines, at) {
  const first = ITEM.exec(lines[at]);
  const indent = first[1].length;
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const line = lines[end];
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent + 1) {
      if (match[1].length < indent || /\d/.test(match[2]) !== isOrdered) break;
      items.push([match[3]]);
    } else if (!line.trim()) {
      const next = lines[end + 1] ?? '';
      if (!ITEM.test(next) && !/^\s{2,}\S/.test(next)) break;
      items.at(-1).push('');
    } else if (match || /^\s{2,}/.test(line)) {
      items.at(-1).push(line.slice(Math.min(indent + 2, line.length - line.trimStart().length)));
    } else if (startsBlock(line) || !lines[end - 1].trim()) {
      break;
    } else {
      items.at(-1).push(line);
    }
    end += 1;
  }
  const start = isOrdered ? parseInt(first[2], 10) : null;
  return [{kind: 'list', isOrdered, start, items: items.map((item) => item.join('\n'))}, end];
}

function blockElement(block, depth) {
  switch (block.kind) {
    case 'code': return codeBlock(block.code, block.language);
    // one level of the page is above them
    case 'heading': return h(`h${Math.min(block.level + 2, 6)}`, {class: `md-h${block.level}`},
      inline(block.text));
    case 'rule': return h('hr');
    case 'quote': return h('blockquote', {}, nested(block.text, depth));
    case 'list': return h(block.isOrdered ? 'ol' : 'ul',
      block.isOrdered && block.start !== 1 ? {start: block.start} : {},
      block.items.map((item) => h('li', {}, nested(item, depth, true))));
    default: return h('p', {}, inline(block.text));
  }
}

/** What is inside of an item or a quote: a single paragraph of an item stays a line. */
function nested(text, depth, isItem = false) {
  if (depth >= MAX_DEPTH) return [text];
  const blocks = splitBlocks(text);
  return blocks.flatMap((block, i) => (
    isItem && i === 0 && block.kind === 'paragraph' ? inline(block.text)
      : [blockElement(block, depth + 1)]));
}

/** A line of text -> nodes. Marks that have no partner stay as they are. */
function inline(text, depth = 0) {
  const nodes = [];
  let plain = '';
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = '';
  };
  let at = 0;
  while (at < text.length) {
    const found = depth < MAX_DEPTH ? spanAt(text, at, depth) : null;
    if (found) {
      flush();
      nodes.push(found.node);
      at += found.length;
    } else {
      const isEscape = text[at] === '\\' && /[\\`*_[\]()#+\-.!>~]/.test(text[at + 1] ?? '');
      if (isEscape) at += 1;
      plain += text[at];
      at += 1;
    }
  }
  flush();
  return nodes;
}

function spanAt(text, at, depth) {
  const rest = text.slice(at, at + 4000);
  switch (text[at]) {
    case '`': {
      const match = /^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/.exec(rest);
      return match && {node: h('code', {}, match[2].trim() || match[2]), length: match[0].length};
    }
    case '*':
    case '_': {
      if (text[at] === '_' && /\w/.test(text[at - 1] ?? '')) return null;  // snake_case
      const mark = text[at] === '*' ? '\\*' : '_';
      const end = text[at] === '_' ? '(?!\\w)' : '';
      const strong = new RegExp(`^${mark}{2}(?=\\S)([\\s\\S]*?\\S)${mark}{2}${end}`).exec(rest);
      if (strong) return {node: h('strong', {}, inline(strong[1], depth + 1)), length: strong[0].length};
      const soft = new RegExp(`^${mark}(?=[^\\s*_])([^*_]*?[^\\s*_])${mark}${end}(?!${mark})`).exec(rest);
      return soft && {node: h('em', {}, inline(soft[1], depth + 1)), length: soft[0].length};
    }
    case '[': {
      const match = LINK.exec(rest);
      return match && {node: link(match[2], inline(match[1], depth + 1)), length: match[0].length};
    }
    case 'h':
    case 'H': {
      if (/\w/.test(text[at - 1] ?? '')) return null;
      const match = BARE_LINK.exec(rest);
      if (!match) return null;
      const address = match[0].replace(/[.,;:!?)\]*]+$/, '');
      return {node: link(address, [address]), length: address.length};
    }
    default: return null;
  }
}

function link(address, children) {
  return h('a', {href: address, target: '_blank', rel: 'noopener noreferrer nofollow'}, children);
}
