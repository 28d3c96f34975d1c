import { startCloud } from './support/cloud.ts'
import { formatMs, median, formatRate, quantile } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { runLifecycles, type LifecycleResult } from './support/run-lifecycles.ts'
import { createBody } from './support/spec.ts'

const ROUNDS = 3
const SECONDS = 5
const CLIENTS = 128
/** The goal in lifecycles per second. */
const GOAL = 500

/**
 * Measures sandbox lifecycles per second, with one server process and the simulated driver. A lifecycle is four
 * requests: create and start until running, stop, wait, delete. Each lifecycle causes seven events and five
 * transitions.
 */
export async function benchLifecycles(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const { host, port, headers } = cloud
  const rounds: LifecycleResult[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const body = JSON.stringify(createBody(`life-${String(round)}-{{n}}`))
    const durationMs = SECONDS * 1000
    rounds.push(await runLifecycles({ host, port, headers, body, clients: CLIENTS, warmupMs: 1_000, durationMs }))
  }
  const rate = median(rounds.map(({ lifecycles }) => lifecycles / SECONDS))
  const steps = (['create until running', 'stop', 'until stopped', 'delete'] as const).map((step): ResultRow => {
    const samples = rounds.flatMap(({ stepsMs }) => stepsMs[step])
    const measured = `p50 ${formatMs(median(samples))}, p99 ${formatMs(quantile(samples, 0.99))} ms`
    return {
      benchmark: 'lifecycles',
      what: `the same, ${step}`,
      measured,
      limit: '',
      ratio: null,
      goal: '',
      isMet: null,
    }
  })
  const whole = { what: `complete sandbox lifecycles, ${String(CLIENTS)} clients`, measured: formatRate(rate) }
  const goal = { goal: `>= ${String(GOAL)} /s`, isMet: rate >= GOAL }
  const samples = rounds.map(({ lifecycles, cpuMs }) => ({ lifecycles, cpuMs }))
  return [{ benchmark: 'lifecycles', ...whole, limit: '', ratio: null, ...goal, samples }, ...steps]
}
