import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

/** The latencies of a client in ms, and its failures. */
export type ClientResult = { readonly latenciesMs: readonly number[]; readonly failures: readonly string[] }

/** The pause between two requests, in milliseconds. */
const REST_MS = 25
/** One request in this many is a create. */
const CREATE_EACH = 8
/** The limit of a reply in milliseconds. A slower one is a failure. */
const REPLY_TIMEOUT_MS = 60_000

/** Reads and creates sandboxes at a modest rate over one connection until the signal. Their names begin with `prefix`. */
export async function runWellBehavedClient(
  server: { readonly url: string; readonly key: string },
  prefix: string,
  signal: AbortSignal,
): Promise<ClientResult> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const latenciesMs: number[] = []
  const failures: string[] = []
  const ask = async (method: string, path: string, body?: object): Promise<string> => {
    const from = performance.now()
    try {
      const { status, text } = await exchange({ ...server, agent }, { method, path, body })
      if (status === 200) latenciesMs.push(performance.now() - from)
      else failures.push(`${method} ${path}: ${String(status)} ${text.slice(0, 300)}`)
      return status === 200 ? String(JSON.parse(text).id) : ''
    } catch (error) {
      failures.push(`${method} ${path}: ${String(error)}`)
      return ''
    }
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
  return { latenciesMs, failures }
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
