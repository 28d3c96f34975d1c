/**
 * Simulates many workers in one process. Each worker has one connection, syncs over it all the time, and reports that
 * all its desired runs are running. Prints a line of JSON with its counts every second.
 *
 * Usage: `node fleet-player.ts HOST PORT WORKERS RAMP_MS`, with a `PlayedWorker` as JSON in each line of standard input.
 */
import { randomUUID } from 'node:crypto'
import { connect, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { WORKER_PROTOCOL_VERSION, type SyncAnswer } from '../../src/contract/workers/worker-protocol.ts'
import { ABILITIES } from '../../src/domain/abilities.ts'
import { applyRunChanges } from '../../src/worker/agent/apply-run-changes.ts'
import type { PlayedWorker } from './fleet-tables.ts'
import { pause } from './pause.ts'

const [host = '', port = '', count = '', rampMs = ''] = process.argv.slice(2)

const DRIVER = {
  name: 'simulated',
  isolation: 'SIMULATED',
  abilities: ABILITIES,
  images: ['localhost/demo:latest'],
  default_disk_mib: 8_192,
}
const CAPACITY = { vcpus: 32, memory_mib: 65_536, disk_mib: 1_000_000 }
const STORAGE = { is_shared: false, enforces_caps: false, how: 'a benchmark' }

type PlayedRun = PlayedWorker['runs'][number] & { readonly phase: 'running' }

const done = { syncs: 0, wanted: 0, failed: 0, connected: 0, slowestHeadMs: 0 }

async function play({ id: worker_id, credential, runs }: PlayedWorker): Promise<void> {
  const incarnation = randomUUID()
  let seq = 0
  let known_desired_version: string | null = null
  let known_volumes_version: string | null = null
  let known_generation: number | null = null
  let observed_runs: readonly PlayedRun[] = runs.map((run) => ({ ...run, phase: 'running' }))
  for (;;) {
    const socket = connect(Number(port), host)
    socket.setNoDelay(true)
    try {
      await new Promise<void>((resolve, reject) => socket.once('connect', resolve).once('error', reject))
      done.connected += 1
      for (;;) {
        const body = JSON.stringify({
          protocol: WORKER_PROTOCOL_VERSION,
          worker_id,
          incarnation,
          seq: ++seq,
          known_desired_version,
          capacity: CAPACITY,
          driver: DRIVER,
          observed_runs,
          stored_sandboxes: observed_runs.map(({ sandbox_id }) => sandbox_id),
          dialled_tickets: [],
          storage: STORAGE,
          volumes: null,
          known_volumes_version,
          known_generation,
        })
        const text = await exchange(socket, credential, body)
        done.syncs += 1
        const answer: SyncAnswer = JSON.parse(text.slice(text.indexOf('{')))
        const isSame = answer.desired_runs === null && answer.volumes_version === known_volumes_version
        known_generation = isSame ? answer.generation : null
        known_volumes_version = answer.volumes_version
        if (answer.desired_runs === null) continue
        done.wanted += 1
        known_desired_version = answer.desired_version
        const desired = answer.desired_runs.map(({ run_id, sandbox_id }) => ({
          run_id,
          sandbox_id,
          phase: 'running' as const,
        }))
        observed_runs = applyRunChanges(observed_runs, { ...answer, desired_runs: desired }, (run) => run)
      }
    } catch {
      done.failed += 1
      await pause(500)
    } finally {
      socket.destroy()
      done.connected -= 1
    }
  }
}

/** Sends one sync and resolves with the body of its answer, with the chunked transfer encoding removed. */
function exchange(socket: Socket, credential: string, body: string): Promise<string> {
  const sentAtMs = performance.now()
  let hasHead = false
  return new Promise((resolve, reject) => {
    let text = ''
    const onData = (chunk: Buffer): void => {
      text += chunk.toString('latin1')
      if (!hasHead) done.slowestHeadMs = Math.max(done.slowestHeadMs, performance.now() - sentAtMs)
      hasHead = true
      if (!text.endsWith('\r\n0\r\n\r\n') && !(text.includes('content-length') && !text.startsWith('HTTP/1.1 200')))
        return
      settle()
      if (text.startsWith('HTTP/1.1 200')) resolve(bodyIn(text))
      else reject(new Error(text.slice(0, 300)))
    }
    const onEnd = (): void => {
      settle()
      reject(new Error('the connection ended'))
    }
    const settle = (): void => {
      socket.off('data', onData).off('close', onEnd).off('error', onEnd)
    }
    socket.on('data', onData).on('close', onEnd).on('error', onEnd)
    socket.write(
      `POST /worker/v1/sync HTTP/1.1\r\nhost: ${host}\r\nauthorization: Bearer ${credential}\r\ncontent-type: application/json\r\ncontent-length: ${String(Buffer.byteLength(body))}\r\n\r\n${body}`,
    )
  })
}

/** Joins the chunks of an answer's body (RFC 9112, section 7.1). */
function bodyIn(text: string): string {
  let rest = text.slice(text.indexOf('\r\n\r\n') + 4)
  let body = ''
  for (;;) {
    const end = rest.indexOf('\r\n')
    const size = Number.parseInt(rest.slice(0, end), 16)
    if (!(size > 0)) return body
    body += rest.slice(end + 2, end + 2 + size)
    rest = rest.slice(end + 2 + size + 2)
  }
}

const lines: string[] = []
for await (const line of createInterface({ input: process.stdin })) lines.push(line)
setInterval(() => {
  process.stdout.write(`${JSON.stringify(done)}\n`)
  done.slowestHeadMs = 0
}, 1_000)
for (const [index, line] of lines.entries()) {
  void play(JSON.parse(line)) // never resolves; the process is killed
  if (index % 10 === 9) await pause((Number(rampMs) * 10) / Number(count))
}
