/**
 * The watcher program: runs a sandbox's workload through the guest's agent and writes the workload's end to a file. It
 * is a separate process that outlives the worker. The relay kills a client's processes when the client disconnects. The
 * watcher is therefore the client, and not the worker, which may be restarted. The watcher forwards SIGTERM to the
 * workload.
 */
import { renameSync, writeFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { asMap, decodeCbor } from '../../../channel/cbor.ts'
import { decodeEnvelope, encodeMessage } from '../../../channel/envelope.ts'
import { makeFrameReader, type Frame } from '../../../channel/frame.ts'
import { connectAgent } from './agent-socket.ts'
import type { WorkloadEnd } from './vm-records.ts'
import type { WorkloadRequest } from './start-workload.ts'

/**
 * How many bytes microsandbox's relay sends before the first frame: the range of correlation ids that this connection may
 * use. This program needs only the first id.
 */
const PROLOGUE_BYTES = 8
const SIGTERM = 15

const order = JSON.parse(await readFile(process.argv[3] ?? '', 'utf8')) as WorkloadRequest // written by start-workload.ts
const end = await runWorkload(order)
writeFileSync(`${order.end_file}.tmp`, JSON.stringify(end), { mode: 0o600 })
renameSync(`${order.end_file}.tmp`, order.end_file)

async function runWorkload(order: WorkloadRequest): Promise<WorkloadEnd> {
  const socket = await connectAgent(order.socket)
  const [cmd = '', ...args] = order.command
  const reader = makeFrameReader()
  let head = Buffer.alloc(0)
  let id: number | null = null
  for await (const chunk of socket) {
    let piece = Buffer.isBuffer(chunk) ? chunk : Buffer.from(String(chunk))
    if (id === null) {
      head = Buffer.concat([head, piece])
      if (head.length < PROLOGUE_BYTES) continue
      const own = Math.max(1, head.readUInt32BE(0))
      id = own
      piece = head.subarray(PROLOGUE_BYTES)
      const request = {
        cmd,
        args,
        env: order.env,
        cwd: order.cwd,
        user: order.user,
        tty: false,
        rows: 24,
        cols: 80,
        rlimits: [],
      }
      socket.write(encodeMessage(own, 'core.exec.request', request))
      process.on('SIGTERM', () => socket.write(encodeMessage(own, 'core.exec.signal', { signal: SIGTERM })))
    }
    for (const frame of reader.push(piece)) {
      const end = frame.id === id ? endOf(frame, cmd) : null
      if (end === null) continue
      socket.destroy()
      return end
    }
  }
  return { kind: 'lost' }
}

function endOf(frame: Frame, cmd: string): WorkloadEnd | null {
  const { type, payload } = decodeEnvelope(frame.body)
  if (type === 'core.exec.exited') {
    const code = Number(asMap(decodeCbor(payload))['code'])
    return code < 0 ? { kind: 'signalled' } : { kind: 'exited', code }
  }
  if (type === 'core.exec.failed' || type === 'core.error')
    return { kind: 'failed', message: `the program '${cmd}': ${String(asMap(decodeCbor(payload))['message'])}` }
  return null
}
