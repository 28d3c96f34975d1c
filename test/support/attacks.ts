/** Hostile clients, which attack a server until they are stopped. Tests and benchmarks use them. */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { encodeVolumePath, VOLUME_PATH_HEADER } from '../../src/contract/volumes/volume-protocol.ts'

/** The server under attack, and what the attacker uses: a key, an IP address and a volume. */
export type AttackTarget = {
  readonly port: number
  readonly key: string
  readonly address: string
  readonly volume: string
}

export type Attack = {
  readonly what: string
  /** Whether the attack uses a valid key. */
  readonly hasKey: boolean
  readonly connections: number
  /** Makes the behaviour of one connection. Its `next` returns the bytes to send, or null to stop sending. */
  readonly makeScript: (target: AttackTarget, nth: number) => ConnectionScript
}

type ConnectionScript = {
  readonly next: (sent: number) => string | Buffer | null
  /** The pause before the next message in milliseconds, or `answered` to wait for a reply instead. */
  readonly pace: number | 'answered'
  readonly readsReplies: boolean
}

/** The size of an attack: the number of opened connections, and of sent requests or pieces of requests. */
export type AttackTally = { readonly connections: number; readonly sent: number }

/** The pause before a new connection, in milliseconds. */
const RECONNECT_MS = 20

/** An attack that goes on until it is stopped. Disposing of it stops it. */
export interface RunningAttack extends AsyncDisposable {
  /** What was attempted so far. */
  tally(): AttackTally
  /** Ends the attack and its connections. Resolves with all that was attempted. May be repeated. */
  stop(): Promise<AttackTally>
}

/** Starts an attack. Whatever the server does, the attacker connects again. */
export function startAttack(attack: Attack, target: AttackTarget): RunningAttack {
  const over = new AbortController()
  const tally = { connections: 0, sent: 0 }
  const one = async (nth: number): Promise<void> => {
    while (!over.signal.aborted) {
      await useConnection(attack.makeScript(target, nth), target, { tally, signal: over.signal })
      await sleep(RECONNECT_MS)
    }
  }
  const all = Promise.all(Array.from({ length: attack.connections }, (_, nth) => one(nth)))
  const stop = async (): Promise<AttackTally> => {
    over.abort()
    await all
    return tally
  }
  return { tally: () => ({ ...tally }), stop, [Symbol.asyncDispose]: async () => void (await stop()) }
}

type Attacker = { readonly tally: { connections: number; sent: number }; readonly signal: AbortSignal }

/** Resolves when the connection has ended. */
function useConnection(
  plan: ConnectionScript,
  { port, address }: AttackTarget,
  { tally, signal }: Attacker,
): Promise<void> {
  return new Promise((resolve) => {
    const socket: Socket = connect({ port, host: '127.0.0.1', localAddress: address })
    const onAbort = (): void => void socket.destroy()
    let sent = 0
    const send = (): void => {
      const bytes = plan.next(sent)
      if (bytes === null || !socket.writable) return
      sent += 1
      tally.sent += 1
      if (plan.pace === 'answered') socket.write(bytes)
      else socket.write(bytes, () => setTimeout(send, Number(plan.pace)))
    }
    signal.addEventListener('abort', onAbort, { once: true })
    if (!plan.readsReplies) socket.pause()
    else if (plan.pace === 'answered') socket.on('data', (piece) => endsReply(piece) && send())
    else socket.resume()
    socket.on('connect', () => {
      tally.connections += 1
      send()
    })
    socket.on('error', onAbort)
    socket.on('end', onAbort)
    socket.once('close', () => {
      signal.removeEventListener('abort', onAbort)
      resolve()
    })
  })
}

/** Whether a reply begins in this piece. A rough check is enough to send the next request. A large reply may end in the same piece. */
function endsReply(piece: Buffer): boolean {
  return piece.includes('HTTP/1.1 ')
}

const BODY_BYTES = 4_000_000
const BYTES_IN_CHUNKS = '1\r\n \r\n'.repeat(10_000)

const head = (start: string, { key }: AttackTarget, more = ''): string =>
  `${start} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key}\r\n${more}\r\n`
const post = (path: string, target: AttackTarget, bytes: number): string =>
  head(`POST ${path}`, target, `content-type: application/json\r\ncontent-length: ${String(bytes)}\r\n`)
const upload = (target: AttackTarget, path: string, framing: string): string =>
  head(`PUT /v1/volumes/${target.volume}/files/content`, target, `${VOLUME_PATH_HEADER}: ${encodeVolumePath(path)}\r\n${framing}\r\n`) // prettier-ignore
const over = (request: (sent: number) => string): ConnectionScript => ({
  next: request,
  pace: 'answered',
  readsReplies: true,
})
const labels = (wanted: Readonly<Record<string, string>>): string => encodeURIComponent(JSON.stringify(wanted))

/** A valid request body for a sandbox, whose specification has four megabytes. */
export function largeBody() {
  const env = Array.from({ length: 4_000 }, (_, n) => ({ key: `K${String(n)}`, value: 'v'.repeat(960) }))
  return { image: 'registry.example/box:1', env }
}

/** The same with a file, whose bytes are two million numbers. */
function largeFileBody() {
  const content = Array.from({ length: 2_000_000 }, (_, n) => n % 10)
  return { image: 'registry.example/box:1', patches: [{ type: 'file', path: '/file', content }] }
}

/** A request to create such a sandbox. */
function largeCreate(target: AttackTarget, name: string, rest: object = largeBody(), query = ''): Buffer {
  const body = JSON.stringify({ name, ...rest })
  return Buffer.from(`${post(`/v1/sandboxes${query}`, target, Buffer.byteLength(body))}${body}`)
}

/** A request to create a sandbox of so many virtual CPUs, to start it, and to wait until it runs. */
function waitingStart(target: AttackTarget, vcpus: number, name: string): string {
  const body = JSON.stringify({ name, image: 'registry.example/box:1', resources: { vcpus, memory_mib: 1_000_000 } })
  return `${post('/v1/sandboxes?start=true&wait_for=running&wait_timeout=300', target, body.length)}${body}`
}

/** A name that no other request uses. */
const uniqueName = (prefix: string, nth: number): string =>
  `${prefix}-${String(process.hrtime.bigint())}-${String(nth)}`

/** Virtual CPUs that no worker of a test has, and that the attacker's quotas allow. */
const VCPUS = 200

/** The limits of the attacker's organization. With those of the default plan, its creates would be refused before they did any harm. */
export const ATTACKER_LIMITS: Readonly<Record<string, string>> = {
  max_sandboxes: 'unlimited',
  max_concurrent_ephemeral_running: 'unlimited',
  max_concurrent_persistent_running: 'unlimited',
  max_vcpus_per_sandbox: String(VCPUS),
  max_memory_mib_per_sandbox: 'unlimited',
}

const YEAR = 'since=2025-11-21T00:00:00Z&until=2026-11-21T00:00:00Z'

export const ATTACKS: readonly Attack[] = [
  { what: 'connections that send nothing', hasKey: false, connections: 1_000, makeScript: () => ({ next: () => null, pace: 0, readsReplies: true }) },
  { what: 'heads sent byte by byte', hasKey: false, connections: 300, makeScript: () => ({ next: (sent) => 'GET / HTTP/1.1\r\nx: '.charAt(sent) || 'x', pace: 200, readsReplies: true }) },
  { what: 'guesses of keys', hasKey: false, connections: 32, makeScript: (target, nth) => over((sent) => head('GET /v1/sandboxes', { ...target, key: `guess-${String(nth)}-${String(sent)}` })) },
  { what: 'requests without a key and without reading the replies', hasKey: false, connections: 32, makeScript: () => ({ next: () => 'GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n'.repeat(100), pace: 5, readsReplies: false }) },
  { what: 'bytes that are not HTTP', hasKey: false, connections: 32, makeScript: () => over(() => 'nonsense\r\n\r\n') },
  { what: 'large bodies without a key', hasKey: false, connections: 32, makeScript: (target) => { const piece = Buffer.alloc(65_536, ' '); return { next: (sent) => (sent === 0 ? post('/v1/sandboxes', { ...target, key: 'none' }, BODY_BYTES) : piece), pace: 1, readsReplies: true } } },
  { what: 'repeated requests for metrics and readiness', hasKey: false, connections: 32, makeScript: (_, nth) => over(() => `GET ${nth % 2 === 0 ? '/metrics' : '/readyz'} HTTP/1.1\r\nhost: x\r\n\r\n`) },
  { what: 'reads, each as soon as the previous one is answered', hasKey: true, connections: 64, makeScript: (target) => over(() => head('GET /v1/sandboxes?limit=100', target)) },
  { what: 'lists by labels of which few sandboxes have all', hasKey: true, connections: 32, makeScript: (target, nth) => over(() => head(`GET /v1/sandboxes?labels=${nth % 2 === 0 ? labels({ parity: 'odd', mirror: 'even' }) : labels({ a: '1', b: '1', c: '1' })}`, target)) },
  { what: 'usage reports of a year', hasKey: true, connections: 16, makeScript: (target) => over(() => head(`GET /v1/billing/usage/sandbox?${YEAR}`, target)) },
  { what: 'pages of events and quotas', hasKey: true, connections: 32, makeScript: (target, nth) => over(() => head(nth % 2 === 0 ? 'GET /v1/quotas' : `GET /v1/events?limit=100&event_type=never_heard_of&${YEAR}`, target)) },
  { what: 'bodies sent byte by byte', hasKey: true, connections: 200, makeScript: (target) => ({ next: (sent) => (sent === 0 ? post('/v1/sandboxes', target, BODY_BYTES) : ' '), pace: 200, readsReplies: true }) },
  { what: 'starts that wait for capacity that never comes', hasKey: true, connections: 300, makeScript: (target, nth) => over(() => waitingStart(target, VCPUS, uniqueName('wait', nth))) },
  { what: 'starts beyond a quota', hasKey: true, connections: 300, makeScript: (target, nth) => over(() => waitingStart(target, VCPUS + 1, uniqueName('refused', nth))) },
  { what: 'creates with a file, which is four megabytes of numbers', hasKey: true, connections: 16, makeScript: (target, nth) => { const body = largeFileBody(); return { ...over(() => ''), next: () => largeCreate(target, uniqueName('file', nth), body) } } },
  { what: 'creates with a byte in each chunk', hasKey: true, connections: 16, makeScript: (target) => ({ next: (sent) => (sent === 0 ? head('POST /v1/sandboxes', target, 'content-type: application/json\r\ntransfer-encoding: chunked\r\n') : BYTES_IN_CHUNKS), pace: 1, readsReplies: true }) },
  { what: 'reads of sandboxes with a large file, which wait for capacity', hasKey: true, connections: 32, makeScript: (target, nth) => { const body = { ...largeFileBody(), resources: { vcpus: VCPUS, memory_mib: 1_000_000 } }; return { ...over(() => ''), next: (sent) => (nth + sent === 0 ? largeCreate(target, 'waiting', body, '?start=true') : head('GET /v1/sandboxes/by-name/waiting', target)) } } },
  { what: 'deletes of sandboxes of four megabytes, with another entity tag', hasKey: true, connections: 32, makeScript: (target, nth) => ({ ...over(() => ''), next: (sent) => (nth + sent === 0 ? largeCreate(target, 'kept') : head('DELETE /v1/sandboxes/by-name/kept', target, 'if-match: "x"\r\n')) }) },
  // The lists after it show these sandboxes, so each page has as many bytes as a page may have.
  { what: 'creates of four megabytes', hasKey: true, connections: 16, makeScript: (target, nth) => ({ ...over(() => ''), next: () => largeCreate(target, uniqueName('large', nth)) }) },
  { what: 'starts and stops of sandboxes of four megabytes', hasKey: true, connections: 2, makeScript: (target, nth) => { const name = uniqueName('restarted', nth); return { ...over(() => ''), next: (sent) => (sent === 0 ? largeCreate(target, name) : post(`/v1/sandboxes/by-name/${name}/${sent % 2 === 1 ? 'start' : 'stop'}`, target, 0)) } } },
  { what: 'lists without reading the replies', hasKey: true, connections: 64, makeScript: (target, nth) => { const list = head('GET /v1/sandboxes?limit=100', target); return nth % 2 === 0 ? { next: () => list.repeat(20), pace: 5, readsReplies: false } : { next: (sent) => (sent === 0 ? list.repeat(5) : null), pace: 5, readsReplies: false } } },
  { what: 'uploads with a byte in each chunk', hasKey: true, connections: 16, makeScript: (target, nth) => ({ next: (sent) => (sent === 0 ? upload(target, `/chunks-${String(nth)}`, 'transfer-encoding: chunked') : BYTES_IN_CHUNKS), pace: 1, readsReplies: true }) },
  { what: 'uploads of a byte each 100 ms', hasKey: true, connections: 100, makeScript: (target, nth) => ({ next: (sent) => (sent === 0 ? upload(target, `/slow-${String(nth)}`, `content-length: ${String(BODY_BYTES)}`) : 'x'), pace: 100, readsReplies: true }) },
] // prettier-ignore
