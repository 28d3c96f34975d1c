import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

/** A request of a client, and what came of it. */
export type ClientAnswer = {
  /** The time from the request to the end of its reply, in milliseconds. */
  readonly latencyMs: number
  /** The request with its reply or error, unless it was answered 200. */
  readonly failure: string | null
}

/** A well-behaved client: whom it asks with which key, how its sandboxes' names begin, and who hears its answers. */
export type ClientOptions = {
  readonly url: string
  readonly key: string
  readonly prefix: string
  readonly signal: AbortSignal
  readonly onAnswer: (answer: ClientAnswer) => void
}

/** The pause between two requests, in milliseconds. */
const REST_MS = 25
/** Every eighth request is a create. */
const CREATE_EACH = 8
/** The limit of a reply in milliseconds. A slower one is a failure. */
const REPLY_TIMEOUT_MS = 60_000

/** Creates and reads sandboxes at a modest rate over one connection until the signal, and reports each answer. */
export async function runWellBehavedClient({ url, key, prefix, signal, onAnswer }: ClientOptions): Promise<void> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const ask = async (method: string, path: string, body?: object): Promise<string> => {
    const fromMs = performance.now()
    let id = ''
    let failure: string | null = null
    try {
      const { status, text } = await exchange({ url, key, agent }, { method, path, body })
      if (status === 200) id = String(JSON.parse(text).id)
      else failure = `${method} ${path}: ${String(status)} ${text.slice(0, 300)}`
    } catch (error) {
      failure = `${method} ${path}: ${String(error)}`
    }
    onAnswer({ latencyMs: performance.now() - fromMs, failure })
    return id
  }
  const create = (n: number): Promise<string> =>
    ask('POST', '/v1/sandboxes', { name: `${prefix}-${String(n)}`, image: 'registry.example/box:1' })
  try {
    let id = await create(0)
    for (let n = 1; !signal.aborted; n++) {
      if (n % CREATE_EACH === 0) id = await create(n)
      else await ask('GET', `/v1/sandboxes/${id}`)
      await sleep(REST_MS)
    }
  } finally {
    agent.destroy()
  }
}

type Asked = { readonly method: string; readonly path: string; readonly body: object | undefined }

function exchange(
  { url, key, agent }: { readonly url: string; readonly key: string; readonly agent: Agent },
  { method, path, body }: Asked,
): Promise<{ readonly status: number; readonly text: string }> {
  return new Promise((resolve, reject) => {
    const bytes = body === undefined ? null : JSON.stringify(body)
    const headers = {
      authorization: `Bearer ${key}`,
      ...(bytes === null ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(bytes) }),
    }
    const asked = request(`${url}${path}`, { method, agent, headers, timeout: REPLY_TIMEOUT_MS }, (reply) => {
      let text = ''
      reply.setEncoding('utf8')
      reply.on('data', (piece: string) => {
        text += piece
      })
      reply.on('end', () => {
        resolve({ status: reply.statusCode ?? 0, text })
      })
      reply.on('error', reject)
    })
    asked.on('timeout', () => asked.destroy(new Error(`no reply in ${String(REPLY_TIMEOUT_MS)} ms`)))
    asked.on('error', reject)
    asked.end(bytes ?? undefined)
  })
}
