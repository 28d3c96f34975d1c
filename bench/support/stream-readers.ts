/**
 * Reads many streams of events as a process. It prints a line when all streams are open, and once its input ends how
 * long each event took from its own time to its arrival at each stream, by the machine's clock.
 */
import { connect } from 'node:net'
import { createInterface } from 'node:readline'
import { pause } from './pause.ts'

export type StreamJob = {
  readonly host: string
  readonly port: number
  readonly authorization: string
  readonly streams: number
}
export type StreamsResult = { readonly latenciesMs: readonly number[] }

const TOGETHER = 100
const TIMESTAMP = /"timestamp":"([^"]+)"/g
const SETTLE_MS = 1_000

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const job = JSON.parse((await lines.next()).value ?? '') as StreamJob // event-streams.ts wrote it
const latenciesMs: number[] = []
for (let open = 0; open < job.streams; open += TOGETHER)
  await Promise.all(Array.from({ length: Math.min(TOGETHER, job.streams - open) }, read))
process.stdout.write('open\n')
await lines.next()
await pause(SETTLE_MS)
const end: StreamsResult = { latenciesMs }
process.stdout.write(`${JSON.stringify(end)}\n`, () => process.exit(0))

function read(): Promise<void> {
  const { promise: opened, resolve, reject } = Promise.withResolvers<undefined>()
  const socket = connect(job.port, job.host)
  let rest = ''
  socket.setNoDelay(true).setEncoding('latin1')
  socket.on('connect', () =>
    socket.write(`GET /v1/events/stream HTTP/1.1\r\nhost: ${job.host}\r\nauthorization: ${job.authorization}\r\n\r\n`),
  )
  socket.on('data', (piece: string) => {
    const atMs = performance.timeOrigin + performance.now()
    if (rest === '' && piece.startsWith('HTTP/1.1 '))
      if (piece.startsWith('HTTP/1.1 200')) resolve(undefined)
      else reject(new Error(piece))
    rest += piece
    const whole = rest.lastIndexOf('\n\n')
    if (whole < 0) return
    for (const [, timestamp = ''] of rest.slice(0, whole).matchAll(TIMESTAMP))
      latenciesMs.push(atMs - Date.parse(timestamp))
    rest = rest.slice(whole)
  })
  socket.on('error', reject)
  return opened
}
