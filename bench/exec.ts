import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { createWebSocketStream, WebSocket } from 'ws'
import { chooseRuntime } from '../src/cli/start-worker.ts'
import { readConfig } from '../src/config.ts'
import { runCommand } from '../src/lib/run-command.ts'
import { decodeEnvelope, encodeMessage } from '../src/worker/channel/envelope.ts'
import { makeFrameReader } from '../src/worker/channel/frame.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { median, spreadMs } from './support/numbers.ts'
import { whyNoOci } from './support/oci.ts'
import type { Row } from './support/report.ts'

const WARMUPS = 5
const SAMPLES = 50
/** The eight bytes before the first frame (agent-protocol.md). */
const PROLOGUE_BYTES = 8
const LIMIT_MS = 10_000

/** `true` in a sandbox by the command channel, over HTTP and through the relay, against the runtime's own exec. */
export async function benchExec(): Promise<readonly Row[]> {
  const reason = whyNoOci()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  await using cloud = await startCloud({})
  const id = await startSandbox(cloud)
  const [run = ''] = await readdir(join(cloud.dataDir, 'sandboxes', 'runs'))
  const { command } = await chooseRuntime(readConfig({ SANDYARD_DATA_DIR: cloud.dataDir }, {}))
  const [file = '', ...args] = [...command, 'exec', run, '/bin/true']
  const channel = await openChannel(cloud, id)
  const ours: number[] = []
  const runtime: number[] = []
  for (let sample = -WARMUPS; sample < SAMPLES; sample++) {
    const tookMs = await timeOf(() => channel.run('true'))
    const runtimeMs = await timeOf(() => runCommand(file, args, { timeoutMs: LIMIT_MS }))
    if (sample < 0) continue
    ours.push(tookMs)
    runtime.push(runtimeMs)
  }
  channel.close()
  return [
    {
      benchmark: 'exec',
      what: '`true` by the command channel (min / median / p95)',
      measured: spreadMs(ours),
      limit: `runtime's exec ${spreadMs(runtime)}`,
      ratio: median(ours) / median(runtime),
      goal: '',
      isMet: null,
      samples: { ours, runtime },
    },
  ]
}

async function timeOf(work: () => Promise<unknown>): Promise<number> {
  const beganMs = performance.now()
  await work()
  return performance.now() - beganMs
}

async function startSandbox(cloud: Cloud): Promise<string> {
  for (let tries = 1; ; tries++) {
    const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', {
      name: `bench-exec-${String(tries)}`,
      image: { type: 'oci', reference: 'localhost/demo' },
      resources: { vcpus: 1, memory_mib: 512 },
    })
    if (body['status'] === 'running') return String(body['id'])
    if (tries === 20) throw new Error(`no sandbox could be started: ${JSON.stringify(body)}`)
    await cloud.call('DELETE', `/v1/sandboxes/${String(body['id'])}`)
  }
}

type Channel = { run(cmd: string): Promise<void>; close(): void }

/** The least that a client of the agent protocol does: one command at a time. */
async function openChannel(cloud: Cloud, id: string): Promise<Channel> {
  const socket = new WebSocket(`ws://${cloud.host}:${String(cloud.port)}/v1/sandboxes/${id}/agent`, {
    headers: { authorization: cloud.headers['authorization'] ?? '' },
  })
  const stream = createWebSocketStream(socket)
  const reader = makeFrameReader()
  let missing = PROLOGUE_BYTES
  let nextId = 1
  let onEnd: { readonly id: number; readonly resolve: () => void; readonly reject: (error: Error) => void } | null =
    null
  stream.on('data', (piece: Buffer) => {
    const skipped = Math.min(missing, piece.length)
    missing -= skipped
    for (const frame of reader.push(piece.subarray(skipped))) {
      const { type } = decodeEnvelope(frame.body)
      if (frame.id !== onEnd?.id || (frame.flags & 1) === 0) continue
      if (type === 'core.exec.exited') onEnd.resolve()
      else onEnd.reject(new Error(`the command ended with ${type}`))
    }
  })
  await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
  return {
    run: (cmd) =>
      new Promise((resolve, reject) => {
        const id = nextId++
        onEnd = { id, resolve, reject }
        const request = { cmd, args: [], env: [], cwd: '/', user: null, tty: false, rows: 24, cols: 80, rlimits: [] }
        stream.write(encodeMessage(id, 'core.exec.request', request))
      }),
    close: () => socket.terminate(),
  }
}
