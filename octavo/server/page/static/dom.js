// Building blocks for every view: elements made by the DOM's own functions, never from HTML text.

const SVG = 'http://www.w3.org/2000/svg';

// Stroked paths on a 24 x 24 grid.
const ICONS = {
  auto: 'M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18',
  light: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4',
  dark: 'M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z',
  help: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.2 9.3a2.9 2.9 0 1 1 4.3 2.5c-1 .6-1.5 1.1-1.5 2.2M12 17v.1',
  key: 'M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 12.2 20 4M16.5 7.2l2.8 2.8M13.5 10l2 2',
  close: 'M6 6l12 12M18 6 6 18',
  list: 'M4 6h16M4 12h16M4 18h10',
  sliders: 'M4 7h9M19 7h1M4 17h1M11 17h9M16 4.5v5M8 14.5v5',
  plus: 'M12 5v14M5 12h14',
  send: 'M12 20V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  check: 'M5 13l4.5 4.5L19 7',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  redo: 'M20 5v5h-5M19.5 14a8 8 0 1 1-1.3-7.5L20 10',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5',
  left: 'M14.5 6l-6 6 6 6',
  right: 'M9.5 6l6 6-6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  upload: 'M12 16V4M7 9l5-5 5 5M4 17v3h16v-3',
  download: 'M12 4v12M7 11l5 5 5-5M4 17v3h16v-3',
};

/** An element: properties by name (`on` + event, `class`, `data-*`, `aria-*` too), then children. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else if (value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A decorative icon. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows only an icon; `label` is its name and its hint. */
export function iconButton(name, label, onclick, properties = {}) {
  return h('button', {type: 'button', class: 'icon-button', 'aria-label': label, title: label,
    onclick, ...properties}, icon(name));
}

/** Puts a text on the clipboard; false where the browser allows neither way. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // no clipboard outside of a secure context: the old way, through a selection
    const area = h('textarea', {value: text, class: 'unseen', 'aria-hidden': 'true'});
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

/** A button that copies what `text()` gives, and shows for a moment that it did. */
export function copyButton(label, text) {
  const button = iconButton('copy', label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? 'check' : 'close'));
    announce(done ? 'Copied' : 'The browser does not allow copying');
    setTimeout(() => button.replaceChildren(icon('copy')), 1500);
  });
  return button;
}

/** A modal dialog with a title and a close button; it leaves the document when it closes. */
export function dialog(title, content, {onclose, className = ''} = {}) {
  const heading = h('h2', {}, title);
  heading.id = 'dialog-title';
  const element = h('dialog', {class: `dialog ${className}`, 'aria-labelledby': heading.id},
    h('div', {class: 'dialog-head'}, heading,
      iconButton('close', 'Close', () => element.close())),
    content);
  element.addEventListener('click', (event) => {
    if (event.target === element) element.close();  // its backdrop
  });
  element.addEventListener('close', () => {
    element.remove();
    onclose?.();
  });
  document.body.append(element);
  element.showModal();
  return element;
}

/** Tells users of screen readers, when they are next idle. */
export function announce(text) {
  const region = document.getElementById('announcer');
  region.textContent = '';
  // a new text node is news, the same text again is not
  setTimeout(() => { region.textContent = text; }, 50);
}
