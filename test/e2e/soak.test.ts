import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { interruptibleSleep, systemClock } from '../../src/lib/clock.ts'
import { noteFault } from '../support/reliability.ts'
import { makeSoakClient } from '../support/soak/soak-client.ts'
import {
  sendHostileTraffic,
  runSandboxLifecycles,
  readListPages,
  rewriteFiles,
  rotateKeys,
} from '../support/soak/workloads.ts'
import { openSoakCluster, type SoakCluster } from '../support/soak/cluster.ts'
import { watchMemory, type MemoryWatch } from '../support/soak/memory.ts'
import { COUNTER_NAMES, makeTally, type SoakTally } from '../support/soak/tally.ts'

// Everything at once: server processes, workers and PostgreSQL are killed and frozen while clients of every kind work.

/** The duration of the soak. `npm run reliability` sets 30 minutes. */
const SECONDS = Number(process.env['SANDYARD_SOAK_SECS'] ?? '45')
const LIVES_AT_ONCE = 4
const SAMPLE_MS = 2_000
/** The minimum duration of a soak for which the growth of memory is checked. */
const TREND_FROM_SECS = 600
/**
 * The maximum growth of a process's most memory between the halves of a soak after its warm-up: this fraction plus
 * `GROWTH_MIB`.
 */
const GROWTH = 0.1
const GROWTH_MIB = 24

describe(`a soak of ${String(SECONDS)} s with everything at once`, () => {
  test('nothing acknowledged is lost, every answer fits our schemas and the published API document, and memory doesn’t grow', async (t) => {
    await using cluster = await openSoakCluster()
    if (!cluster.areReal) t.diagnostic(`the sandboxes are simulated: ${cluster.why}`)
    const tally = makeTally()
    const over = new AbortController()
    const client = makeSoakClient(cluster.urls, cluster.key, tally)
    const deps = { client, tally, areReal: cluster.areReal, signal: over.signal }
    const watches = cluster.steady.map(({ name, program }) => watchMemory(name, program))
    const clients = [
      ...Array.from({ length: LIVES_AT_ONCE }, () => runSandboxLifecycles(deps)),
      readListPages(deps),
      rotateKeys(deps),
      rewriteFiles(deps),
      sendHostileTraffic(deps),
    ]
    const injected = new Map<string, number>()
    const working = Promise.all([
      ...clients,
      sampleAll(watches, over.signal),
      injectFaults(cluster, injected, over.signal),
    ])
    working.catch(() => over.abort()) // a client's failure ends the soak; `working` is awaited below, which reports it
    await interruptibleSleep(systemClock, SECONDS * 1_000, over.signal)
    over.abort()
    await working
    await cluster.settle()

    for (const what of COUNTER_NAMES) t.diagnostic(`${what}: ${String(tally.counts[what])}`)
    for (const [fault, count] of injected) t.diagnostic(`injected: ${fault}: ${String(count)}`)
    assert.deepEqual(tally.breaches, [])
    assert.ok(tally.counts['whole lives of sandboxes'] > 0, `no sandbox lived:\n${cluster.output()}`)
    assert.deepEqual(await cluster.leftovers(), [])
    const memory = watches.map((watch) => judge(watch))
    for (const line of memory) t.diagnostic(line)
    note({ injected, tally, memory })
  })
})

async function sampleAll(watches: readonly MemoryWatch[], signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    for (const watch of watches) watch.sample()
    await interruptibleSleep(systemClock, SAMPLE_MS, signal)
  }
}

/** Injects one fault after another. Before the next one, every process that died runs again. */
async function injectFaults(cluster: SoakCluster, injected: Map<string, number>, signal: AbortSignal): Promise<void> {
  for (let n = 0; !signal.aborted; n++) {
    await interruptibleSleep(systemClock, Math.min(10_000, SECONDS * 100), signal)
    const fault = cluster.faults[n % cluster.faults.length]
    if (signal.aborted || fault === undefined) return
    await fault.inject()
    injected.set(fault.name, (injected.get(fault.name) ?? 0) + 1)
  }
}

function judge(watch: MemoryWatch): string {
  const { earlierMib, laterMib, samples } = watch.trend()
  const line = `${watch.name}: at most ${String(earlierMib)} MiB in the first half after the warm-up, ${String(laterMib)} in the second`
  if (SECONDS >= TREND_FROM_SECS && samples > 100)
    assert.ok(laterMib <= earlierMib * (1 + GROWTH) + GROWTH_MIB, `memory grows: ${line}`)
  return line
}

function note(seen: {
  readonly injected: ReadonlyMap<string, number>
  readonly tally: SoakTally
  readonly memory: readonly string[]
}): void {
  const { counts } = seen.tally
  const work = COUNTER_NAMES.map((what) => `${counts[what].toLocaleString('en-US')} ${what}`).join(', ')
  for (const [fault, injected] of seen.injected)
    noteFault({
      area: 'soak',
      fault: `${fault}, while everything else continues`,
      injected,
      checked:
        'every reply, every acknowledged sandbox, key and file; at the end no open run, container, mount or process is left',
      found: 'no breach',
    })
  noteFault({
    area: 'soak',
    fault: `all of these faults for ${String(SECONDS)} s`,
    injected: [...seen.injected.values()].reduce((sum, count) => sum + count, 0),
    checked: `the most memory of the processes that no fault hits: at most ${String(GROWTH * 100)} % and ${String(GROWTH_MIB)} MiB more in the second half after the warm-up than in the first (from ${String(TREND_FROM_SECS)} s on)`,
    found: `${work}; ${seen.memory.join('; ')}`,
  })
}
