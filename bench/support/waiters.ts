/**
 * Runs the waiters as a process. The process opens a connection for each sandbox of the job and sends a request on it
 * that waits for the sandbox. It prints a line when all requests are sent, and records when each answer arrives, by the
 * machine's clock.
 */
import { connect } from 'node:net'
import { createInterface } from 'node:readline'
import type { WaitJob, WaitsResult } from './wait-job.ts'

/** The number of connections that are opened at the same time. The listen queue of the server would refuse more. */
const TOGETHER = 200

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const job = JSON.parse((await lines.next()).value ?? '') as WaitJob // waits.ts wrote it
const arrivals = new Map<string, number>()
const failures: string[] = []
const { promise: allAnswered, resolve } = Promise.withResolvers<undefined>()

for (let from = 0; from < job.ids.length; from += TOGETHER) {
  await Promise.all(job.ids.slice(from, from + TOGETHER).map(ask))
}
process.stdout.write('asked\n')
await allAnswered
const end: WaitsResult = { arrivals: [...arrivals], failures }
process.stdout.write(`${JSON.stringify(end)}\n`, () => process.exit(0))

function ask(id: string): Promise<void> {
  const { promise: asked, resolve: onAsked, reject } = Promise.withResolvers<undefined>()
  const socket = connect(job.port, job.host)
  let received = ''
  socket.setNoDelay(true).setEncoding('latin1')
  socket.on('connect', () => {
    const head = `GET /v1/sandboxes/${id}/wait?for=${job.status}&timeout=300 HTTP/1.1\r\nhost: ${job.host}\r\n`
    socket.write(`${head}authorization: ${job.authorization}\r\n\r\n`)
    onAsked(undefined)
  })
  socket.on('data', (piece: string) => {
    if (received === '') {
      arrivals.set(id, performance.timeOrigin + performance.now())
      if (arrivals.size === job.ids.length) setTimeout(() => resolve(undefined), 200)
    }
    received += piece
    const body = received.split('\r\n\r\n')[1]
    if (body !== undefined && !received.startsWith('HTTP/1.1 200') && failures.length < 5) failures.push(received)
  })
  socket.on('error', (error) => {
    failures.push(error.message)
    reject(error)
  })
  return asked
}
