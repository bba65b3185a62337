// The stream of GET /octavo/events: fetch (so that it carries the API key), parsed, and opened
// again with growing waits when it breaks. Knows the framing of server-sent events, not what they
// mean.

const FIRST_WAIT_S = 0.5;
const LONGEST_WAIT_S = 10;
// No byte for this long (the server pings every 15 s): the connection is dead though nobody said
// so.
const SILENCE_S = 40;

/** Calls onEvent(name, value) for each message, onStatus(kind, text) when the connection changes:
 * "connecting", "live", "waiting" (will try again), "refused" (will not), "closed". */
export class EventStream {
  constructor({url, headers, onEvent, onStatus}) {
    this._url = url;
    this._headers = headers;
    this._onEvent = onEvent;
    this._onStatus = onStatus;
    this._abort = null;
    this._timer = 0;
    this._wait = FIRST_WAIT_S;
  }

  get isOpen() {
    return this._abort !== null || this._timer !== 0;
  }

  open() {
    if (this.isOpen) return;
    this._wait = FIRST_WAIT_S;
    this._connect();
  }

  /** Connects at once if it waits to try again. */
  hurry() {
    if (!this._timer) return;
    clearTimeout(this._timer);
    this._connect();
  }

  close() {
    clearTimeout(this._timer);
    this._timer = 0;
    if (this._abort) this._abort.abort();
    this._abort = null;
    this._onStatus('closed', '');
  }

  async _connect() {
    this._timer = 0;
    const abort = new AbortController();
    this._abort = abort;
    this._onStatus('connecting', 'Connecting');
    let problem;
    try {
      problem = await this._read(abort);
    } catch (error) {
      problem = {text: 'The server cannot be reached', final: false};
    }
    if (this._abort !== abort) return;
    this._abort = null;
    abort.abort();
    if (problem.final) {
      this._onStatus('refused', problem.text);
      return;
    }
    const wait = this._wait * (0.8 + 0.4 * Math.random());
    this._wait = Math.min(this._wait * 2, LONGEST_WAIT_S);
    this._onStatus('waiting', `${problem.text}; trying again`);
    this._timer = setTimeout(() => this._connect(), wait * 1000);
  }

  async _read(abort) {
    const response = await fetch(this._url, {
      headers: {Accept: 'text/event-stream', ...this._headers()},
      signal: abort.signal, cache: 'no-store'});
    if (!response.ok) return refusal(response);
    let watchdog = 0;
    const watch = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(), SILENCE_S * 1000);
    };
    const reader = response.body.getReader();
    const parse = parser((name, data) => {
      this._wait = FIRST_WAIT_S;
      this._onEvent(name, JSON.parse(data));
    });
    this._onStatus('live', 'Live');
    try {
      for (;;) {
        watch();
        const {done, value} = await reader.read();
        // closed while the read was under way: what came belongs to nobody
        if (this._abort !== abort) return {text: '', final: true};
        if (done) return {text: 'The server closed the stream', final: false};
        parse(value);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }
}

async function refusal(response) {
  if (response.status === 401 || response.status === 403) {
    return {text: 'The server wants an API key: give it at the top of the page', final: true};
  }
  if (response.status === 404) {
    return {text: 'This server has no live view', final: true};
  }
  let text = `The server answered ${response.status}`;
  try {
    text = (await response.json()).error.message || text;
  } catch (error) {
    // not an error object: the status says enough
  }
  return {text, final: false};
}

/** Feeds bytes, calls message(name, data) at each blank line. Comments are dropped. */
function parser(message) {
  const decoder = new TextDecoder();
  let rest = '';
  return (bytes) => {
    rest += decoder.decode(bytes, {stream: true});
    let end;
    while ((end = rest.indexOf('\n\n')) >= 0) {
      let name = 'message';
      const data = [];
      for (const line of rest.slice(0, end).split('\n')) {
        if (line.startsWith('event:')) name = line.slice(6).trim();
        else if (line.startsWith('data:')) data.push(line.slice(5).trimStart());
      }
      rest = rest.slice(end + 2);
      if (data.length) message(name, data.join('\n'));
    }
  };
}
