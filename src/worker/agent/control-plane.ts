import { Agent as PlainAgent, type IncomingHttpHeaders } from 'node:http'
import { Agent as TlsAgent } from 'node:https'
import { isIP } from 'node:net'
import { WebSocket } from 'ws'
import {
  SNAPSHOT_FILES_PATH,
  STREAM_PURPOSE_HEADER,
  STAND_BY_HOLD_MS,
  STAND_BY_PATH,
  SYNC_HOLD_MS,
  type StreamPurpose,
  type SyncAnswer,
  type SyncRequest,
} from '../../contract/workers/worker-protocol.ts'
import { parseJsonText } from '../../domain/exact-json.ts'
import type { SnapshotId } from '../../domain/ids.ts'
import { makeNamedTls, makePinnedTls, type CheckedTls } from './pinned-tls.ts'
import { makeReplicaUrls } from './replica-urls.ts'
import { isSuccess, sendRequest, type Answer, type OutgoingRequest } from './send-request.ts'
import { makeReadBuffers } from '../../lib/streams/read-buffers.ts'
import { makeSplittingAgent } from './splitting-agent.ts'

/**
 * The worker's client of the control plane, by HTTP and WebSocket. The worker opens every connection. After a failure, the next
 * sync goes to another server process.
 */
export interface ControlPlane {
  /**
   * Sends a report and resolves with the answer. Calls `onRecorded` as soon as the control plane has recorded the
   * report, which also renews the worker's lease. Rejects when the control plane can't be reached or refuses the
   * report. The next call then tries another server process.
   */
  sync(request: SyncRequest, signal: AbortSignal, onRecorded?: () => Promise<void>): Promise<SyncAnswer>
  /**
   * Opens a WebSocket at the ticket's URL and resolves with it. The WebSocket is paused. The signal cancels the attempt
   * to connect but does not close an open connection. Rejects when the ticket has expired or belongs to another worker.
   */
  dial(ticket: DialTarget, signal: AbortSignal): Promise<WebSocket>
  /** The URLs to keep idle connections open to. Absent if there is only one URL. */
  readonly urls?: () => readonly string[]
  /**
   * Opens an idle connection and waits. Resolves with a paused WebSocket when the control plane needs a stream. Rejects
   * when the control plane can't be reached, or when it needed no stream for `STAND_BY_HOLD_MS`. In both cases, call
   * `standBy` again.
   */
  standBy(signal: AbortSignal, url?: string): Promise<{ readonly asked: StreamPurpose; readonly socket: WebSocket }>
  /**
   * Opens a paused WebSocket that carries the files of a snapshot of another worker. Rejects if that worker can't be reached, or no run
   * of this worker needs the snapshot.
   */
  fetchSnapshot(snapshot: SnapshotId, signal: AbortSignal): Promise<WebSocket>
  /** Releases bytes of binary messages, so that their memory is used for later messages. Nobody may use them afterwards. */
  readonly releaseBytes: (bytes: Buffer) => void
}

/**
 * The part of a ticket that is needed to connect. Without a `url`, the worker connects to the server process that it
 * syncs with.
 */
export type DialTarget = { readonly ticket: string; readonly url?: string | undefined }

/** The control plane removed this worker permanently. Its sandboxes move to other workers, and its credential is invalid. */
export class WorkerRemoved extends Error {}

/** How long the only server process may take for an answer, beside the time for which it may hold a sync, in milliseconds. */
const SYNC_SLACK_MS = 7_000
/** The same if another server process can be tried. */
const NO_RESPONSE_LIMIT_MS = 4_000
const DIAL_LIMIT_MS = 8_000
/**
 * How long each of two attempts to connect with a ticket may take, if the ticket names another URL than that of this
 * worker's syncs. The client waits 8 s in total.
 */
const FIRST_DIAL_LIMIT_MS = 4_000
/**
 * How long a connection for syncs is kept while no sync uses it. Servers and proxies close such connections after 5 s or more, and a sync on
 * one that is just being closed fails.
 */
const UNUSED_CONNECTION_MS = 4_000
const STAND_BY_SLACK_MS = 10_000
/** How long the other worker of a snapshot may take to connect. */
const FETCH_LIMIT_MS = 15_000

/**
 * The time limits of a sync, if the worker can try this many other server processes after it. One that stops while it holds a sync,
 * and another one that has stopped, must be given up well before `RENEW_DEADLINE_MS`.
 */
export function syncTimeLimits(untried: number): Pick<Required<OutgoingRequest>, 'limitMs' | 'statusLimitMs'> {
  const isLast = untried === 0
  const limitMs = SYNC_HOLD_MS + (isLast ? SYNC_SLACK_MS : NO_RESPONSE_LIMIT_MS)
  return { limitMs, statusLimitMs: isLast ? limitMs : NO_RESPONSE_LIMIT_MS }
}

export type ControlPlaneOptions = {
  readonly url: string
  readonly credential: string
  /**
   * The SHA-256 of the public key that servers must have, in hex. Absent: certificate authorities decide. A server then needs a
   * certificate for the name in its URL, or for that in `url` if its own URL has an address.
   */
  readonly pin?: () => string | null
}

/**
 * Creates a client of the control plane, with the worker's own credential. It connects to `url` and to the other URLs that the
 * control plane names.
 */
export function makeControlPlane(options: ControlPlaneOptions): ControlPlane {
  const pinned = options.pin === undefined ? null : makePinnedTls(options.pin)
  const named = makeNamedTls(new URL(options.url).hostname)
  /** How a server is checked. Null: by the certificate authorities and the URL's own name. */
  const tlsFor = ({ protocol, hostname }: URL): CheckedTls | null => {
    if (protocol === 'http:' || protocol === 'ws:') return null
    return pinned ?? (named !== null && isIP(hostname.replace(/^\[|\]$/g, '')) !== 0 ? named : null)
  }
  const authorization = `Bearer ${options.credential}`
  const replicas = makeReplicaUrls(options.url)
  const readBuffers = makeReadBuffers()
  const plainUpgrades = makeSplittingAgent(readBuffers)
  const upgradesTo = (url: URL): PlainAgent | undefined =>
    url.protocol === 'ws:' ? plainUpgrades : tlsFor(url)?.upgrades

  const kept = { keepAlive: true, timeout: UNUSED_CONNECTION_MS }
  const [plainAgent, tlsAgent] = [new PlainAgent(kept), new TlsAgent(kept)]

  function syncWith(url: string, request: SyncRequest, signal: AbortSignal): Promise<Answer> {
    const target = new URL('/worker/v1/sync', url)
    return sendRequest(target, {
      method: 'POST',
      headers: { authorization, 'content-type': 'application/json' },
      body: JSON.stringify(request),
      agent: target.protocol === 'http:' ? plainAgent : (tlsFor(target)?.requests ?? tlsAgent),
      signal,
      ...syncTimeLimits(replicas.untried),
    })
  }

  return {
    releaseBytes: readBuffers.release,
    urls: () => replicas.all,
    async sync(request, signal, onRecorded) {
      const url = replicas.current
      try {
        const response = await syncWith(url, request, signal)
        const [text] = await Promise.all([response.text(), isSuccess(response) ? onRecorded?.() : null])
        if (!isSuccess(response)) throw refusalOf(response.status, text)
        const answer = parseJsonText(text) as SyncAnswer // the control plane is the same program with the same protocol version
        if (replicas.current === url) replicas.markAnswered(url, answer.replicas ?? [])
        return answer
      } catch (error) {
        if (!signal.aborted) replicas.markFailed(url)
        throw error
      }
    },
    async dial({ ticket, url: told }, signal) {
      const url = told !== undefined && replicas.accepts(told) ? told : replicas.current
      const path = `${STAND_BY_PATH}/${encodeURIComponent(ticket)}`
      const open = async (to: string, limitMs: number): Promise<WebSocket> =>
        (await openSocket(socketUrl(to, path), { authorization, limitMs, signal, upgradesTo })).socket
      if (url === replicas.current) return open(url, DIAL_LIMIT_MS)
      try {
        return await open(url, FIRST_DIAL_LIMIT_MS)
      } catch (error) {
        // The ticket's server process may be reachable only through the URL of this worker's syncs, for example through
        // a tunnel. If another server process answers there, it refuses the ticket.
        signal.throwIfAborted()
        try {
          return await open(replicas.current, FIRST_DIAL_LIMIT_MS)
        } catch (second) {
          throw new Error(`neither ${url} nor the URL of this worker's syncs accepted the ticket`, {
            cause: new AggregateError([error, second]),
          })
        }
      }
    },
    async fetchSnapshot(snapshot, signal) {
      const url = socketUrl(replicas.current, `${SNAPSHOT_FILES_PATH}/${snapshot}`)
      return (await openSocket(url, { authorization, limitMs: FETCH_LIMIT_MS, signal, upgradesTo })).socket
    },
    async standBy(signal, url = replicas.current) {
      const limitMs = STAND_BY_HOLD_MS + STAND_BY_SLACK_MS
      const { socket, headers } = await openSocket(socketUrl(url, STAND_BY_PATH), {
        authorization,
        limitMs,
        signal,
        upgradesTo,
      })
      try {
        const text = Buffer.from(String(headers[STREAM_PURPOSE_HEADER]), 'base64url').toString('utf8')
        return { asked: JSON.parse(text) as StreamPurpose, socket } // written by the same program with the same protocol version
      } catch (error) {
        socket.terminate()
        throw new Error(`${url} accepted a stream without its purpose: a proxy may have removed the header`, {
          cause: error,
        })
      }
    },
  }
}

function socketUrl(base: string, path: string): URL {
  const url = new URL(path, base)
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:'
  return url
}

function refusalOf(status: number, text: string): Error {
  const { code, message } = parseProblem(text)
  if (status === 401 && code === 'worker_removed') return new WorkerRemoved(message)
  return new Error(`the control plane refused a sync: ${String(status)} ${message}`)
}

type Opening = {
  readonly authorization: string
  readonly limitMs: number
  readonly signal: AbortSignal
  /** The agent for the WebSockets to a URL. Undefined: that of the library. */
  readonly upgradesTo: (url: URL) => PlainAgent | undefined
}

function openSocket(
  url: URL,
  { authorization, limitMs, signal, upgradesTo }: Opening,
): Promise<{ readonly socket: WebSocket; readonly headers: IncomingHttpHeaders }> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted()
    let headers: IncomingHttpHeaders = {}
    const agent = upgradesTo(url)
    const socket = new WebSocket(url, {
      headers: { authorization },
      handshakeTimeout: limitMs,
      perMessageDeflate: false,
      // A mask of zeros takes no processor time. Unpredictable masks protect proxies from scripts in browsers, and this client
      // is no browser (RFC 6455, 10.3).
      generateMask: (mask) => void mask.fill(0),
      ...(agent === undefined ? {} : { agent }),
    })
    const onAbort = (): void => socket.terminate()
    signal.addEventListener('abort', onAbort, { once: true })
    // Once connected, the code that uses the connection handles its end. This listener only keeps an error from ending
    // the process.
    socket.on('error', (error) => {
      signal.removeEventListener('abort', onAbort)
      reject(error)
    })
    socket.once('upgrade', (reply) => {
      headers = reply.headers
    })
    socket.once('open', () => {
      signal.removeEventListener('abort', onAbort)
      socket.pause()
      resolve({ socket, headers })
    })
  })
}

/** How many characters of an answer appear in the error if the answer is not a problem document. */
const SHOWN_CHARS = 300

/**
 * Parses the problem document in an answer of the control plane. For any other answer, the message is the beginning of its
 * text.
 */
export function parseProblem(text: string): { readonly code: string | null; readonly message: string } {
  try {
    const body: unknown = JSON.parse(text)
    const error = fieldOf(body, 'error')
    const [code, message] = [fieldOf(error, 'code'), fieldOf(error, 'message')]
    if (typeof code === 'string' && typeof message === 'string') return { code, message }
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error // a proxy's page is not JSON
  }
  return { code: null, message: text.slice(0, SHOWN_CHARS) }
}

function fieldOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null
    ? Object.entries(value).find(([key]) => key === name)?.[1]
    : undefined
}
