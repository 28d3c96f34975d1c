import { startCloud } from './support/cloud.ts'
import { formatMs, median, formatRate, quantile } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { runLifecycles, type LifecycleResult } from './support/run-lifecycles.ts'
import { createBody } from './support/spec.ts'

const ROUNDS = 3
const SECONDS = 5
/**
 * How long lifecycles run before the rounds. V8 compiles what they call meanwhile. In turn with rounds from the start (2026-11-29), the rate rose from 313 and 368
 * a second in the first 5 s to 443 and 527 after 20 s.
 */
const WARMUP_SECONDS = 20
const CLIENTS = 128
/** The goal in lifecycles per second. */
const GOAL = 500

/**
 * Measures sandbox lifecycles per second, with one server process and the simulated driver: in the first seconds of the server, and
 * once it is warm. A lifecycle is four requests: create and start until running, stop, wait, delete. Each lifecycle causes
 * seven events and five transitions.
 */
export async function benchLifecycles(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const { host, port, headers } = cloud
  const run = (name: string, warmupMs: number, seconds: number): Promise<LifecycleResult> => {
    const body = JSON.stringify(createBody(`life-${name}-{{n}}`))
    return runLifecycles({ host, port, headers, body, clients: CLIENTS, warmupMs, durationMs: seconds * 1000 })
  }
  const first = await run('first', 0, SECONDS)
  await run('warm', 0, WARMUP_SECONDS - SECONDS)
  const rounds: LifecycleResult[] = []
  for (let round = 0; round < ROUNDS; round++) rounds.push(await run(String(round), 1_000, SECONDS))
  const rate = median(rounds.map(({ lifecycles }) => lifecycles / SECONDS))
  const steps = (['create until running', 'stop', 'until stopped', 'delete'] as const).map((step): ResultRow => {
    const samples = rounds.flatMap(({ stepsMs }) => stepsMs[step])
    return detailOf(step, `p50 ${formatMs(median(samples))}, p99 ${formatMs(quantile(samples, 0.99))} ms`)
  })
  const whole = { what: `complete sandbox lifecycles, ${String(CLIENTS)} clients`, measured: formatRate(rate) }
  const goal = { goal: `>= ${String(GOAL)} /s`, isMet: rate >= GOAL }
  const samples = rounds.map(({ lifecycles, cpuMs }) => ({ lifecycles, cpuMs }))
  const cold = detailOf(`in the first ${String(SECONDS)} s of the server`, formatRate(first.lifecycles / SECONDS))
  return [{ benchmark: 'lifecycles', ...whole, limit: '', ratio: null, ...goal, samples }, cold, ...steps]
}

/** A row without a goal. */
function detailOf(what: string, measured: string): ResultRow {
  const noGoal = { limit: '', ratio: null, goal: '', isMet: null }
  return { benchmark: 'lifecycles', what: `the same, ${what}`, measured, ...noGoal }
}
