// The server's API as seen from the page: addresses, the API key, errors as one kind of object.

const KEY = 'octavo.key';
const listeners = new Set();

/** What the server refused, or why it could not be reached (status 0). */
export class ApiError extends Error {
  constructor(message, {status = 0, code = null, param = null} = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

/** The key this tab sends; it lives as long as the tab does. */
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? '';
  } catch {
    return '';
  }
}

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Headers of every call. */
export function headers() {
  const key = apiKey();
  return key ? {Authorization: `Bearer ${key}`} : {};
}

/** Calls `listener(error or null)` after each call: null when the server answered. */
export function onOutcome(listener) {
  listeners.add(listener);
}

/** fetch of a path below the page's own address. Throws ApiError unless the answer is a success.
    isTold: whether the listeners hear of the outcome. */
export async function call(path, {method = 'GET', body, signal, isTold = true} = {}) {
  const told = isTold ? tell : (outcome) => outcome;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method, body, signal, cache: 'no-store',
      headers: body === undefined ? headers() : {...headers(), 'Content-Type': 'application/json'},
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw told(new ApiError('The server cannot be reached. Is it still running?'));
  }
  if (!response.ok) throw told(await refusal(response));
  told(null);
  return response;
}

/** Tells the listeners, for who reads an answer itself; returns the error. */
export function tell(error) {
  for (const listener of listeners) listener(error);
  return error;
}

async function refusal(response) {
  let found = {};
  try {
    found = (await response.json()).error ?? {};
  } catch {
    // no error object: a proxy's page, perhaps
  }
  return new ApiError(found.message ?? `The server answered with status ${response.status}.`,
    {status: response.status, code: found.code ?? null, param: found.param ?? null});
}

/** The `data` of each event of a stream, as text, until the server ends it. */
export async function* eventData(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith('data: ')) yield line.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
