/**
 * The load generator, a process of its own: reads a job as JSON from its input, keeps every connection busy with one
 * request at a time, and writes what it saw as JSON. It speaks HTTP/1.1 over bare sockets, so that
 * little of the processor's time is its own (measured 2026-11: a tenth of a processor at 3,900 creates a second).
 */
import { connect } from 'node:net'
import { json } from 'node:stream/consumers'
import type { LoadJob, LoadResult } from './run-load.ts'

process.stdout.write(JSON.stringify(await run((await json(process.stdin)) as LoadJob))) // run-load.ts wrote it

async function run(job: LoadJob): Promise<LoadResult> {
  const startMs = performance.now() + job.warmupMs
  const endMs = startMs + job.durationMs
  const latenciesMs: number[] = []
  const unexpected = new Map<number, number>()
  let sample = ''
  let counter = 0
  const makeRequest = requestMaker(job)

  const worker = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const socket = connect(job.port, job.host)
      let received = ''
      let sentMs = 0
      const send = (): void => {
        sentMs = performance.now()
        socket.write(makeRequest(counter++), 'latin1')
      }
      socket.setNoDelay(true).setEncoding('latin1')
      socket.on('connect', send)
      socket.on('error', reject)
      socket.on('close', () => reject(new Error('the server closed a connection')))
      socket.on('data', (piece: string) => {
        received = received === '' ? piece : received + piece
        const reply = parseReply(received)
        if (reply === null) return
        const nowMs = performance.now()
        if (reply.status !== job.expectedStatus) unexpected.set(reply.status, (unexpected.get(reply.status) ?? 0) + 1)
        if (sample === '' || reply.status !== job.expectedStatus) sample = received
        received = ''
        if (nowMs >= startMs && nowMs <= endMs) latenciesMs.push(nowMs - sentMs)
        if (nowMs < endMs) return send()
        socket.removeAllListeners('close').end()
        resolve()
      })
    })

  await Promise.all(Array.from({ length: job.connections }, worker))
  const cpuMs = process.cpuUsage().user / 1000 + process.cpuUsage().system / 1000
  return { latenciesMs, unexpected: Object.fromEntries(unexpected), sample, cpuMs }
}

/** Requests with `{{n}}` in their body replaced by a number of twelve digits that no other request of the job has. */
function requestMaker(job: LoadJob): (n: number) => string {
  const headers = Object.entries({ host: `${job.host}:${String(job.port)}`, ...job.headers })
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  const bodyLength = Buffer.byteLength(job.body.replaceAll('{{n}}', '0'.repeat(12)))
  const length = job.body === '' ? '' : `content-length: ${String(bodyLength)}\r\n`
  const parts = `${job.method} ${job.path} HTTP/1.1\r\n${lines}${length}\r\n${job.body}`.split('{{n}}')
  return (n) => (parts.length === 1 ? (parts[0] ?? '') : parts.join(String(n).padStart(12, '0')))
}

/** Null while the reply is not whole. Every server measured here gives a content length. */
function parseReply(text: string): { readonly status: number } | null {
  const end = text.indexOf('\r\n\r\n')
  if (end === -1) return null
  const head = text.slice(0, end)
  const length = /\ncontent-length: *(\d+)/i.exec(head)?.[1]
  if (length === undefined) throw new Error(`a reply without a content length: ${head}`)
  return text.length < end + 4 + Number(length) ? null : { status: Number(head.slice(9, 12)) }
}
