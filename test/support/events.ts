/** A Server-Sent Event. A comment has the type `:`. */
export type ServerEvent = { readonly id: string | null; readonly type: string; readonly data: string }

/** One entry of a sandbox's log, sent as an event of type `log`. */
export type LogEvent = {
  readonly id: string
  readonly source: string
  readonly ts: string
  readonly text: string
}

/** A reply: a stream of events, or a refusal in JSON. */
export type EventsReply = {
  readonly status: number
  readonly headers: Headers
  /** The events, comments included, until the stream ends. Rejects when the connection breaks. */
  readonly events: AsyncIterable<ServerEvent>
  /** The refusal's `error`. */
  readonly refusal: () => Promise<{ readonly code: string; readonly message: string; readonly details: unknown }>
}

/** Requests a stream of events with a key. */
export async function openEvents(
  url: string,
  key: string,
  options: { readonly headers?: Readonly<Record<string, string>>; readonly signal?: AbortSignal } = {},
): Promise<EventsReply> {
  const headers = { authorization: `Bearer ${key}`, accept: 'text/event-stream', ...options.headers }
  const reply = await fetch(url, { headers, signal: options.signal ?? null })
  return {
    status: reply.status,
    headers: reply.headers,
    events: parseEvents(reply.body ?? new ReadableStream()),
    async refusal() {
      return Object(await reply.json()).error
    },
  }
}

/**
 * A log that is being read: its lines so far, and how the stream ended: with an `end` event, or without one (`plain`).
 */
export type FollowedLog = { readonly lines: readonly LogEvent[]; readonly ended: Promise<'end' | 'plain'> }

/** Reads the events of a log as they arrive. */
export function followLog({ events }: EventsReply): FollowedLog {
  const lines: LogEvent[] = []
  const read = async (): Promise<'end' | 'plain'> => {
    let ended: 'end' | 'plain' = 'plain'
    for await (const { id, type, data } of events) {
      if (type === 'log') lines.push({ id: id ?? '', ...JSON.parse(data) })
      if (type === 'end') ended = 'end'
    }
    return ended
  }
  return { lines, ended: read() }
}

/** Reads a log until the stream ends. Resolves with its lines, and with whether the stream sent an `end` event. */
export async function readLog(
  url: string,
  key: string,
  options: Parameters<typeof openEvents>[2] = {},
): Promise<{ readonly lines: readonly LogEvent[]; readonly hasEnded: boolean }> {
  const reply = await openEvents(url, key, options)
  if (reply.status !== 200) throw new Error(`a log was refused: ${JSON.stringify(await reply.refusal())}`)
  const { lines, ended } = followLog(reply)
  return { hasEnded: (await ended) === 'end', lines }
}

async function* parseEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let rest = ''
  for await (const chunk of body) {
    const blocks = (rest + decoder.decode(chunk, { stream: true })).split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) yield parseEvent(block)
  }
  if (rest !== '') throw new Error(`a stream of events ended within one: ${rest.slice(0, 200)}`)
}

function parseEvent(block: string): ServerEvent {
  if (block.startsWith(':')) return { id: null, type: ':', data: block.slice(1).trim() }
  const fields = new Map(block.split('\n').map((line) => [line.slice(0, line.indexOf(': ')), line.slice(line.indexOf(': ') + 2)])) // prettier-ignore
  return { id: fields.get('id') ?? null, type: fields.get('event') ?? 'message', data: fields.get('data') ?? '' }
}
