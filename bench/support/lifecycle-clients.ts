/**
 * Runs clients that take sandboxes through their lifecycle, as a process. The process reads a job as JSON from standard
 * input and writes the result as JSON. Each client sends one request at a time on its own bare socket, which needs
 * little processor time.
 */
import { connect, type Socket } from 'node:net'
import { json } from 'node:stream/consumers'
import type { LifecycleJob, LifecycleResult, LifecycleStep } from './run-lifecycles.ts'

process.stdout.write(JSON.stringify(await run((await json(process.stdin)) as LifecycleJob))) // run-lifecycles.ts wrote it

async function run(job: LifecycleJob): Promise<LifecycleResult> {
  const fromMs = performance.now() + job.warmupMs
  const untilMs = fromMs + job.durationMs
  const stepsMs: Record<LifecycleStep, number[]> = {
    'create until running': [],
    stop: [],
    'until stopped': [],
    delete: [],
  }
  let completed = 0
  const lead = async (client: number): Promise<void> => {
    const socket = connect(job.port, job.host).setNoDelay(true).setEncoding('utf8')
    const call = callerOn(job, socket)
    for (let count = 0; performance.now() < untilMs; count++) {
      const timed = async <T>(step: LifecycleStep, work: () => Promise<T>): Promise<T> => {
        const beganMs = performance.now()
        const result = await work()
        const endedMs = performance.now()
        if (endedMs >= fromMs && endedMs <= untilMs) stepsMs[step].push(endedMs - beganMs)
        return result
      }
      const body = job.body.replaceAll('{{n}}', `${String(client)}-${String(count)}`)
      const id = await timed('create until running', () => createRunning(call, body))
      await timed('stop', () => call('POST', `/v1/sandboxes/${id}/stop`))
      await timed('until stopped', () => call('GET', `/v1/sandboxes/${id}/wait?for=stopped&timeout=30`))
      await timed('delete', () => call('DELETE', `/v1/sandboxes/${id}`))
      if (performance.now() >= fromMs && performance.now() <= untilMs) completed += 1
    }
    socket.destroy()
  }
  await Promise.all(Array.from({ length: job.clients }, (_, client) => lead(client)))
  const { user, system } = process.cpuUsage()
  return { lifecycles: completed, stepsMs, cpuMs: (user + system) / 1000 }
}

type Call = (method: string, path: string, body?: string) => Promise<Readonly<Record<string, unknown>>>

async function createRunning(call: Call, body: string): Promise<string> {
  const { id, status } = await call('POST', '/v1/sandboxes?start=true&wait_for=running&wait_timeout=30', body)
  if (status !== 'running') throw new Error(`a sandbox is ${String(status)} after its wait`)
  return String(id)
}

/**
 * Creates a function that sends requests on a socket. The function rejects on any status but 200. Bodies are ASCII, and
 * every reply of these routes has a content length.
 */
function callerOn(job: LifecycleJob, socket: Socket): Call {
  const given = Object.entries({ host: `${job.host}:${String(job.port)}`, ...job.headers })
  const headers = given.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  let received = ''
  let asked = ''
  let waiting: { readonly resolve: (reply: string) => void; readonly reject: (error: Error) => void } | null = null
  socket.on('data', (piece: string) => {
    received += piece
    const end = received.indexOf('\r\n\r\n')
    const lengthBytes = Number(/\ncontent-length: *(\d+)/i.exec(received.slice(0, end))?.[1])
    if (end === -1 || received.length < end + 4 + lengthBytes) return
    const reply = received
    received = ''
    waiting?.resolve(reply)
  })
  socket.on('error', (error) => waiting?.reject(error))
  socket.on('close', () => waiting?.reject(new Error(`the server closed a connection at ${asked}`)))
  return async (method, path, body = '') => {
    asked = `${method} ${path}`
    const reply = await new Promise<string>((resolve, reject) => {
      waiting = { resolve, reject }
      socket.write(`${method} ${path} HTTP/1.1\r\n${headers}content-length: ${String(body.length)}\r\n\r\n${body}`)
    })
    waiting = null
    if (!reply.startsWith('HTTP/1.1 200 ')) throw new Error(`${asked} was answered ${reply}`)
    return JSON.parse(reply.slice(reply.indexOf('\r\n\r\n') + 4))
  }
}
