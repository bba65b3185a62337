// One request to /v1/chat/completions: its body from a conversation, and the answer as it comes.
// Knows no elements.

import {ApiError, call, eventData, tell} from './api.js';
import {NUMBERS} from './chat-store.js';

export const NUM_ALTERNATIVES = 5;
const MAX_SEED_DIGITS = 20;

/** What is wrong with the settings, as {field, message}; null if they can be sent. */
export function settingsFault(settings) {
  if (settings.seed && !/^-?\d+$/.test(settings.seed.trim())) {
    return {field: 'seed', message: 'The seed is a whole number.'};
  }
  if ((settings.seed ?? '').trim().length > MAX_SEED_DIGITS) {
    return {field: 'seed', message: 'The seed is too long.'};
  }
  const message = schemaFault(settings.schema ?? '');
  return message ? {field: 'schema', message} : null;
}

/** What is wrong with the text as a JSON Schema; '' for nothing, and for no text. */
export function schemaFault(text) {
  if (!text.trim()) return '';
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
  const isSchema = typeof value === 'boolean'
    || (typeof value === 'object' && value !== null && !Array.isArray(value));
  return isSchema ? '' : 'A JSON Schema is an object.';
}

/** The body as JSON text. path: the messages to answer, first to last. */
export function requestBody(settings, path, model) {
  const messages = path.map(({role, content}) => ({role, content}));
  if (settings.system?.trim()) messages.unshift({role: 'system', content: settings.system});
  const body = {model, messages, stream: true, stream_options: {include_usage: true}};
  for (const name of NUMBERS) if (settings[name] !== undefined) body[name] = settings[name];
  if (settings.schema?.trim()) {
    body.response_format = {type: 'json_schema',
      json_schema: {name: 'answer', schema: JSON.parse(settings.schema)}};
  }
  if (settings.heat) Object.assign(body, {logprobs: true, top_logprobs: NUM_ALTERNATIVES});
  const text = JSON.stringify(body);
  // as it was typed: a seed has more digits than a number here can hold
  return settings.seed?.trim() ? `${text.slice(0, -1)},"seed":${settings.seed.trim()}}` : text;
}

/** Sends it and writes the answer into `node` (content, reasoning, tokens, meta), calling
    `onNews()` after each change. Throws ApiError, or AbortError when `signal` was used. */
export async function streamAnswer(body, node, {signal, onNews}) {
  const started = performance.now();
  const times = {first: 0, last: 0, chunks: 0};
  const reader = new TokenReader();
  let isDone = false;
  try {
    const response = await call('v1/chat/completions', {method: 'POST', body, signal});
    for await (const data of eventData(response)) {
      if (data === '[DONE]') {
        isDone = true;
        break;
      }
      if (takeChunk(data, node, reader)) {
        times.last = performance.now();
        times.first ||= times.last;
        times.chunks += 1;
        onNews();
      }
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === 'AbortError') throw error;
    throw tell(new ApiError('The connection to the server was lost.'));
  } finally {
    node.meta = {...node.meta, ...measured(node.meta ?? {}, times, started)};
  }
  if (!isDone) throw new ApiError('The server ended the answer before it was complete.');
}

/** Whether it brought any output. */
function takeChunk(data, node, reader) {
  const chunk = JSON.parse(data);
  if (chunk.error) throw new ApiError(chunk.error.message, {status: 500, code: chunk.error.code});
  if (chunk.usage) {
    node.meta = {...node.meta, prompt_tokens: chunk.usage.prompt_tokens,
      completion_tokens: chunk.usage.completion_tokens,
      cached_tokens: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0};
  }
  const [choice] = chunk.choices;
  if (!choice) return false;
  if (choice.finish_reason) {
    node.meta = {...node.meta, finish: choice.finish_reason};
    const seed = /"seed":(-?\d+)/.exec(data);  // the text: it may be too long for a number
    if (seed) node.meta.seed = seed[1];
  }
  const {content, reasoning_content: reasoning} = choice.delta;
  if (content) node.content += content;
  if (reasoning) node.reasoning = (node.reasoning ?? '') + reasoning;
  const entries = choice.logprobs?.content ?? [];
  if (entries.length) {
    node.tokens ??= [];
    node.tokens.push(...entries.map((entry) => reader.read(entry)));
  }
  if (choice.finish_reason === 'stop') dropEnd(node);
  return Boolean(content || reasoning || entries.length);
}

/** The token that ended the answer has a probability, but is no part of its text. */
function dropEnd(node) {
  const last = node.tokens?.at(-1);
  if (last && !node.content.endsWith(last[0])) node.tokens.pop();
}

/** Entries of logprobs -> [text, logprob, [[text, logprob] of the most likely ones]]. Characters
    of several tokens show in the one that completes them. */
class TokenReader {
  #decoder = new TextDecoder();

  read(entry) {
    const shown = this.#decoder.decode(new Uint8Array(entry.bytes), {stream: true});
    return [shown, rounded(entry.logprob),
      entry.top_logprobs.map((one) => [one.token, rounded(one.logprob)])];
  }
}

function rounded(logprob) {
  return Math.round(logprob * 1000) / 1000;
}

function measured(meta, {first, last, chunks}, started) {
  if (!first) return {};
  // without the usage (a stopped answer) the pieces are counted, which are a token each mostly
  const count = meta.completion_tokens ?? chunks;
  const found = {ttft_ms: Math.round(first - started), completion_tokens: count};
  if (meta.completion_tokens === undefined) found.is_estimate = 1;
  if (count > 1 && last > first) {
    found.tokens_per_s = Math.round((count - 1) / (last - first) * 1e4) / 10;
  }
  return found;
}
