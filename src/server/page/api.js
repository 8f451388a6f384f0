// Client of the server's API.

const KEY = 'litecache-key';

// An error answer of the server.
export class ApiError extends Error {
  constructor(status, message, code, retryAfter) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? {...more, 'Authorization': `Bearer ${key}`} : more;
}

async function check(response) {
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy's page, or an empty body: only the status is known.
  }
  throw new ApiError(response.status, error.message ?? `HTTP status ${response.status}`, error.code,
                     Number(response.headers.get('Retry-After')) || 0);
}

// Paths are relative, so that the page also works below a proxy's path prefix.
export async function get(path, signal) {
  return (await check(await fetch(path, {headers: headers(), cache: 'no-store', signal}))).json();
}

async function send(path, body, signal) {
  return check(await fetch(path, {
    method: 'POST',
    headers: headers({'Content-Type': 'application/json'}),
    body: JSON.stringify(body),
    signal,
  }));
}

export async function post(path, body) {
  return (await send(path, body)).json();
}

// Posts `body` and yields the JSON of each event of the streamed answer.
export async function* stream(path, body, signal) {
  const response = await send(path, {...body, stream: true}, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let ended = false;
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    rest += value;
    const events = rest.split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;  // a ping
      const data = event.slice(6);
      if (data === '[DONE]') {
        ended = true;
        continue;
      }
      const json = JSON.parse(data);
      if (json.error) throw new ApiError(0, json.error.message, json.error.code, 0);
      yield json;
    }
  }
  if (!ended) throw new ApiError(0, 'the connection ended before the answer did', null, 0);
}

// An error as a sentence for the user.
export function explain(error) {
  if (!(error instanceof ApiError)) {
    return error instanceof TypeError ? 'The server does not answer. Is it running?' : `${error}`;
  }
  if (error.status === 401) return 'The server refuses this API key.';
  if (error.status === 429) {
    return `The server is busy. Try again in ${error.retryAfter || 1} s. (${error.message})`;
  }
  if (error.code === 'context_length_exceeded') {
    return `This is too long for the model: ${error.message}. Start a new conversation, or shorten ` +
        'the message.';
  }
  if (error.code === 'loading') return 'The model is still being loaded. Try again in a moment.';
  return `The server says: ${error.message}`;
}
