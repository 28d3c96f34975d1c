import { request as requestPlain, type Agent, type IncomingMessage } from 'node:http'
import { request as requestTls } from 'node:https'

export type OutgoingRequest = {
  readonly method: 'GET' | 'POST'
  readonly headers: Readonly<Record<string, string>>
  /** Empty with GET. */
  readonly body: string
  /** Opens the connection, and keeps it. For HTTPS, it is one of `node:https`. */
  readonly agent: Agent
  readonly signal: AbortSignal
  /** How long the whole exchange may take. */
  readonly limitMs: number
  /** How long it may take until the status arrives. Absent: as the whole exchange. */
  readonly statusLimitMs?: number
}

/** The status of a response, and its body, which must be read: the connection is kept for the next request then. */
export type Answer = { readonly status: number; text(): Promise<string> }

/** Whether the server did what was asked for: 2xx. */
export function isSuccess({ status }: Pick<Answer, 'status'>): boolean {
  return status >= 200 && status < 300
}

/**
 * Sends one request, and resolves when the status arrives. Follows no redirect, so only the server at `url` gets the request. Rejects
 * with the signal's reason if the signal aborts. Each start of a sandbox takes three or four syncs. One takes 0.30 ms of processor time
 * in this way, and 0.58 with `fetch` (800 in turn, 2 busy cores, 2026-11).
 */
export function sendRequest(url: URL, request: OutgoingRequest): Promise<Answer> {
  const { method, headers, body, agent, signal, limitMs, statusLimitMs = limitMs } = request
  return new Promise((resolve, reject) => {
    signal.throwIfAborted()
    const sentHeaders = { ...headers, 'content-length': String(Buffer.byteLength(body)) }
    const send = url.protocol === 'https:' ? requestTls : requestPlain
    const outgoing = send(url, { method, headers: sentHeaders, agent })
    let failure: unknown = null
    const fail = (error: unknown): void => {
      failure ??= error
      outgoing.destroy()
      reject(error)
    }
    const onAbort = (): void => fail(signal.reason)
    const onLate = (ms: number) => (): void => fail(new Error(`${url.origin} did not answer for ${String(ms)} ms`))
    const late = setTimeout(onLate(limitMs), limitMs)
    const silent = setTimeout(onLate(statusLimitMs), statusLimitMs)
    signal.addEventListener('abort', onAbort, { once: true })
    outgoing.once('close', () => {
      clearTimeout(late)
      clearTimeout(silent)
      signal.removeEventListener('abort', onAbort)
    })
    outgoing.on('error', fail)
    outgoing.once('response', (incoming) => {
      clearTimeout(silent)
      const text = async (): Promise<string> => {
        try {
          return await readText(incoming)
        } catch (error) {
          throw failure ?? error // what ended the request explains more than that its connection is closed
        }
      }
      resolve({ status: incoming.statusCode ?? 502, text })
    })
    outgoing.end(body)
  })
}

function readText(incoming: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = ''
    incoming.setEncoding('utf8')
    incoming.on('data', (piece: string) => {
      text += piece
    })
    incoming.once('end', () => {
      resolve(text)
    })
    incoming.once('error', reject)
    if (incoming.errored !== null) reject(incoming.errored)
  })
}
