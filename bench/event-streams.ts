import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, median, quantile } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import type { StreamJob, StreamsResult } from './support/stream-readers.ts'

const STREAMS = 1_000
const EVENTS = 200
/** The interval between changes. Each event goes to all streams. */
const EVERY_MS = 50
const GOAL_MS = 50

/**
 * Opens 1,000 streams of one organization, which all get each event, and measures how long events take to arrive. The time begins at the
 * event's own time, which is within its transaction, so it includes the commit. The limit is the same with one stream.
 */
export async function benchEventStreams(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({
    SANDYARD_DRIVER: 'simulated',
    SANDYARD_LOG_STREAMS_PER_ORG: String(2 * STREAMS),
    SANDYARD_LOG_STREAM_CAPACITY: String(2 * STREAMS),
  })
  const bare = await measure(cloud, 1)
  const ours = await measure(cloud, STREAMS)
  const p99 = quantile(ours, 0.99)
  return [
    {
      benchmark: 'streams',
      what: `from a commit to a stream's client, ${STREAMS.toLocaleString('en-US')} open`,
      measured: `median ${formatMs(median(ours))} ms, p99 ${formatMs(p99)} ms`,
      limit: `one stream: median ${formatMs(median(bare))} ms, p99 ${formatMs(quantile(bare, 0.99))} ms`,
      ratio: median(ours) / median(bare),
      goal: `p99 < ${String(GOAL_MS)} ms`,
      isMet: p99 < GOAL_MS,
      samples: { ours, bare },
    },
  ]
}

async function measure(cloud: Cloud, streams: number): Promise<readonly number[]> {
  const program = join(import.meta.dirname, 'support/stream-readers.ts')
  const child = spawn(process.execPath, [program], { stdio: ['pipe', 'pipe', 'inherit'] })
  const endWithUs = (): void => void child.kill('SIGKILL')
  process.once('exit', endWithUs)
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const authorization = cloud.headers['authorization'] ?? ''
  const job: StreamJob = { host: cloud.host, port: cloud.port, authorization, streams }
  child.stdin.write(`${JSON.stringify(job)}\n`)
  const opened = await lines.next()
  if (opened.value !== 'open') throw new Error(`the readers ended: ${String(opened.value)}`)
  for (let n = 0; n < EVENTS; n++) {
    const { status, body } = await cloud.call('POST', '/v1/volumes', { name: `of-${String(streams)}-${String(n)}` })
    if (status >= 300) throw new Error(`no volume was made: ${JSON.stringify(body)}`)
    await pause(EVERY_MS)
  }
  child.stdin.end('end\n')
  const { latenciesMs } = JSON.parse((await lines.next()).value ?? '') as StreamsResult // stream-readers.ts wrote it
  process.off('exit', endWithUs)
  if (latenciesMs.length !== EVENTS * streams)
    throw new Error(`${String(latenciesMs.length)} of ${String(EVENTS * streams)} events arrived`)
  return latenciesMs
}
