import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { startCloud } from './support/cloud.ts'
import { median, formatRate } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { repliesPerSecond, runLoad, type LoadJob } from './support/run-load.ts'
import { createBody } from './support/spec.ts'

const ROUNDS = 3
const CONNECTIONS = 64
const GOAL = 0.4

/**
 * Gets one sandbox by id. The limit is a bare `node:http` server that sends the same bytes to the same load generator.
 */
export async function benchGet(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const { status, body } = await cloud.call('POST', '/v1/sandboxes', createBody('bench-get'))
  if (status !== 200) throw new Error(`the sandbox was refused: ${JSON.stringify(body)}`)
  const ours: LoadJob = {
    host: cloud.host,
    port: cloud.port,
    connections: CONNECTIONS,
    warmupMs: 1_500,
    durationMs: 4_000,
    method: 'GET',
    path: `/v1/sandboxes/${String(body['id'])}`,
    headers: { authorization: cloud.headers['authorization'] ?? '' },
    body: '',
    expectedStatus: 200,
  }
  const reply = await runLoad({ ...ours, connections: 1, warmupMs: 0, durationMs: 1 })
  const bare = await startBare(reply.sample.slice(reply.sample.indexOf('\r\n\r\n') + 4))
  const rounds: { ours: number; limit: number; medianMs: number; p99Ms: number }[] = []
  try {
    for (let round = 0; round < ROUNDS; round++) {
      const limit = repliesPerSecond(ours, await runLoad({ ...ours, port: bare.port }))
      const { latenciesMs } = await runLoad(ours)
      const sorted = latenciesMs.toSorted((one, other) => one - other)
      rounds.push({
        ours: latenciesMs.length / (ours.durationMs / 1000),
        limit,
        medianMs: median(latenciesMs),
        p99Ms: sorted[Math.floor(sorted.length * 0.99)] ?? NaN,
      })
    }
  } finally {
    await bare.stop()
  }
  const ratio = median(rounds.map((round) => round.ours / round.limit))
  return [
    {
      benchmark: 'get',
      what: `GET by id, ${String(CONNECTIONS)} connections`,
      measured: formatRate(median(rounds.map((round) => round.ours))),
      limit: `bare node:http ${formatRate(median(rounds.map((round) => round.limit)))}`,
      ratio,
      goal: `>= ${String(GOAL)}`,
      isMet: ratio >= GOAL,
      samples: rounds,
    },
  ]
}

async function startBare(body: string): Promise<{ readonly port: number; stop(): Promise<void> }> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'support/bare-server.ts')], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  child.stdin.end(body, 'latin1')
  const [line] = await once(child.stdout, 'data')
  return {
    port: Number(String(line)),
    async stop() {
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}
