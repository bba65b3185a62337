// "Make some load": a few varied requests through the public API, so that there is something to
// see. The answers are read and thrown away.

// Browsers open six connections to a host at most, and the stream and the chat need theirs.
const MAX_CONNECTIONS = 4;
const ROUNDS_S = 25; // no round begins later

const SYSTEM = 'You are the librarian of a small town library. You answer in plain words and ' +
  'short sentences, you never invent a title, and when you do not know a book you say so. The ' +
  'library has four rooms: novels, science, history and children. Novels stand by the author\'s ' +
  'name, science by subject, history by century, children\'s books by age. The library opens at ' +
  'ten and closes at six, on Saturdays at two; on Sundays it is closed. A reader may take six ' +
  'books for four weeks and may keep them twice as long if nobody waits for them. Late books ' +
  'cost nothing, but a reader with a late book cannot take another. The reading room has twelve ' +
  'seats and a lamp at each of them.';
const QUESTIONS = ['Where do I find a book about volcanoes?', 'May I keep my book for six weeks?',
  'What is there for a child of seven?', 'I have a late book. What happens?',
  'Which room has the plays of Shakespeare?', 'Are you open on Saturday afternoon?',
  'Do you have a quiet place to write?', 'Where are the books about the fifteenth century?'];
const PARAGRAPH = 'The river rose in the hills behind the town and ran past the mill, under two ' +
  'stone bridges and through the meadows to the sea. In spring it was brown and loud; in August ' +
  'children crossed it on foot. The miller kept a book of its height on every first day of a ' +
  'month. ';
const SCHEMA = {type: 'object', additionalProperties: false,
  required: ['title', 'author', 'year', 'room'],
  properties: {title: {type: 'string', maxLength: 40}, author: {type: 'string', maxLength: 30},
    year: {type: 'integer', minimum: 1500, maximum: 2025},
    room: {enum: ['novels', 'science', 'history', 'children']}}};

/** The requests of one round: [path, body], the widest first. */
export function plan(model, maxModelLen, round) {
  const question = (i) => QUESTIONS[(round * 3 + i) % QUESTIONS.length];
  const chat = (messages, more) =>
    ['v1/chat/completions', {model, messages, stream: true, ...more}];
  const json = {type: 'json_schema', json_schema: {name: 'book', strict: true, schema: SCHEMA}};
  const asks = (i, more) => chat([{role: 'system', content: SYSTEM},
    {role: 'user', content: question(i)}], more);
  // about 60 tokens a paragraph; at most half of what the model can hold
  const paragraphs = Math.max(1, Math.min(24, Math.floor(maxModelLen / 2 / 70)));
  const long = `Chapter ${round + 1}. ${PARAGRAPH.repeat(paragraphs)}In September`;
  const list = [0, 1, 2, 3].map((i) => `${SYSTEM}\nReader: ${question(i)}\nLibrarian:`);
  return [
    ['v1/completions', {model, prompt: list, stream: true, max_tokens: 160, temperature: 0.7}],
    asks(1, {max_tokens: 128, temperature: 0.8, n: 4}),
    ['v1/completions', {model, prompt: long, stream: true, max_tokens: 48, temperature: 0}],
    chat([{role: 'user', content: 'Name one famous novel.'}], {max_tokens: 96, temperature: 0.7,
      response_format: json}),
    asks(2, {max_tokens: 96, temperature: 0}),
    asks(3, {max_tokens: 160, temperature: 0.9, n: 2}),
  ];
}

/** Sends plans, one after the other; onProgress(done) after each answer, onEnd(error text or "") at
 * the end. */
export class Load {
  constructor({headers, onProgress, onEnd}) {
    this._headers = headers;
    this._onProgress = onProgress;
    this._onEnd = onEnd;
    this._abort = null;
  }

  get isRunning() {
    return this._abort !== null;
  }

  async start(model, maxModelLen) {
    if (this.isRunning) return;
    const abort = new AbortController();
    this._abort = abort;
    const end = performance.now() + ROUNDS_S * 1000;
    let [round, done, problem] = [0, 0, ''];
    let rest = [];
    const refused = new Set(); // paths: a model without a chat template has no chats
    const next = () => {
      if (!rest.length && (round === 0 || performance.now() < end)) {
        rest = plan(model, maxModelLen, round).filter(([path]) => !refused.has(path));
        round += 1;
      }
      return rest.shift();
    };
    const work = async () => {
      let request;
      while (!abort.signal.aborted && (request = next())) {
        try {
          await this._send(...request, abort.signal);
        } catch (error) {
          if (!abort.signal.aborted) problem = error.message;
          if (!error.isRefusal) abort.abort();
          refused.add(request[0]);
          rest = rest.filter(([path]) => path !== request[0]);
          continue;
        }
        done += 1;
        if (!abort.signal.aborted) this._onProgress(done);
      }
    };
    this._onProgress(0);
    await Promise.all(Array.from({length: MAX_CONNECTIONS}, work));
    this._abort = null;
    this._onEnd(problem);
  }

  stop() {
    if (this._abort) this._abort.abort();
  }

  async _send(path, body, signal) {
    const response = await fetch(new URL(path, document.baseURI), {
      method: 'POST', signal, body: JSON.stringify(body),
      headers: {'Content-Type': 'application/json', ...this._headers()}});
    if (!response.ok) {
      const answer = await response.json().catch(() => ({}));
      const text = answer.error && answer.error.message;
      const error = new Error(text || `the server answered ${response.status}`);
      error.isRefusal = response.status === 400;
      throw error;
    }
    const reader = response.body.getReader();
    while (!(await reader.read()).done);
  }
}
