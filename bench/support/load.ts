/**
 * Runs the load generator as a process. The process reads a job as JSON from standard input, sends one request at a
 * time on every connection, and writes the result as JSON. It needs little processor time: it sends prepared HTTP/1.1
 * requests over bare sockets and decodes only the heads of replies.
 */
import { connect } from 'node:net'
import { json } from 'node:stream/consumers'
import type { LoadJob, LoadResult } from './run-load.ts'

const DIGITS = 12
/** The size of the read buffer, larger than any reply here. */
const READ_BYTES = 64 * 1024

process.stdout.write(JSON.stringify(await run((await json(process.stdin)) as LoadJob))) // run-load.ts wrote it

async function run(job: LoadJob): Promise<LoadResult> {
  const startMs = performance.now() + job.warmupMs
  const endMs = startMs + job.durationMs
  const latenciesMs: number[] = []
  const unexpected = new Map<number, number>()
  let sample = ''
  let counter = 0
  const room = Buffer.allocUnsafe(READ_BYTES)

  const worker = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const request = makeRequest(job)
      let sentMs = 0
      const send = (): void => {
        sentMs = performance.now()
        socket.write(request.numbered(counter++))
      }
      const read = replyReader(({ status, text }) => {
        const nowMs = performance.now()
        if (status !== job.expectedStatus) unexpected.set(status, (unexpected.get(status) ?? 0) + 1)
        if (sample === '' || status !== job.expectedStatus) sample = text()
        if (nowMs >= startMs && nowMs <= endMs) latenciesMs.push(nowMs - sentMs)
        if (nowMs < endMs) return send()
        socket.removeAllListeners('close').end()
        resolve()
      })
      // All connections share one read buffer, because each read is processed before the next.
      const onread = { buffer: room, callback: (bytes: number) => read(room.subarray(0, bytes)) }
      const socket = connect({ port: job.port, host: job.host, noDelay: true, onread })
      socket.on('connect', send)
      socket.on('error', reject)
      socket.on('close', () => reject(new Error('the server closed a connection')))
    })

  await Promise.all(Array.from({ length: job.connections }, worker))
  const cpuMs = process.cpuUsage().user / 1000 + process.cpuUsage().system / 1000
  return { latenciesMs, unexpected: Object.fromEntries(unexpected), sample, cpuMs }
}

/** Prepares the request of one connection. `{{n}}` in the body becomes a number of twelve digits. */
function makeRequest(job: LoadJob): { readonly numbered: (n: number) => Buffer } {
  const headers = Object.entries({ host: `${job.host}:${String(job.port)}`, ...job.headers })
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  const bodyLength = Buffer.byteLength(job.body.replaceAll('{{n}}', '0'.repeat(DIGITS)))
  const length = job.body === '' ? '' : `content-length: ${String(bodyLength)}\r\n`
  const parts = `${job.method} ${job.path} HTTP/1.1\r\n${lines}${length}\r\n${job.body}`.split('{{n}}')
  const bytes = Buffer.from(parts.join('0'.repeat(DIGITS)), 'latin1')
  const places = parts.slice(0, -1).map((_, index) => parts.slice(0, index + 1).join('0'.repeat(DIGITS)).length)
  return {
    numbered(n) {
      for (const at of places) bytes.write(String(n).padStart(DIGITS, '0'), at, 'latin1')
      return bytes // safe to reuse, because the previous request was answered
    },
  }
}

type Reply = { readonly status: number; readonly text: () => string }

/**
 * Parses the bytes of a connection and reports each complete reply. Every server in these benchmarks sends a content
 * length.
 */
function replyReader(onReply: (reply: Reply) => void): (piece: Buffer) => boolean {
  let held: Buffer | null = null
  return (piece) => {
    const received: Buffer = held === null ? piece : Buffer.concat([held, piece])
    const end = received.indexOf('\r\n\r\n')
    const head = received.toString('latin1', 0, Math.max(0, end))
    const length = /\ncontent-length: *(\d+)/i.exec(head)?.[1]
    if (end !== -1 && length === undefined) throw new Error(`a reply without a content length: ${head}`)
    if (end === -1 || received.length < end + 4 + Number(length)) held = held === null ? Buffer.from(piece) : received
    else {
      held = null
      onReply({ status: Number(head.slice(9, 12)), text: () => received.toString('latin1') })
    }
    return true
  }
}
