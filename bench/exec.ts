import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { chooseRuntime } from '../src/cli/worker/open-oci-driver.ts'
import { readConfig } from '../src/config.ts'
import { runCommand } from '../src/lib/run-command.ts'
import { openAgentChannel, runProgram } from './support/agent-channel.ts'
import { startCloud } from './support/cloud.ts'
import { median, formatNumber, formatSpreadMs } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { startSandbox } from './support/sandbox.ts'
import { loadClient } from './support/sdk.ts'

const WARMUPS = 5
const SAMPLES = 50
const LIMIT_MS = 10_000
/**
 * The pause before each command. Right after another command, a command takes half the time: 14 ms for the runtime
 * alone, instead of 26 ms after a pause of 50 ms (2026-11).
 */
const REST_MS = 50
/** The goal for the median: at most this factor times the runtime's own exec, plus this many milliseconds. */
const GOAL_RATIO = 1.3
const GOAL_MORE_MS = 15

/**
 * Runs `true` in a sandbox in two ways: with the public client, which opens a channel per command, and over one channel
 * that stays open. The limit is the runtime's own exec. The samples of all three alternate.
 */
export async function benchExec(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_WARM: '0' }) // the container then has the id of its run
  const { id, name } = await startSandbox(cloud, 'bench-exec')
  const [run = ''] = await readdir(join(cloud.dataDir, 'sandboxes', 'runs'))
  const { command } = await chooseRuntime(readConfig({ SANDYARD_DATA_DIR: cloud.dataDir }, {}))
  const [file = '', ...args] = [...command, 'exec', run, '/bin/true']
  const channel = await openAgentChannel(cloud, id)
  const { Sandbox } = await loadClient(cloud)
  const box = await (await Sandbox.get(name)).connect()
  const ways = {
    client: () => box.exec('true'),
    channel: () => runProgram(channel, 'true'),
    runtime: () => runCommand(file, args, { timeoutMs: LIMIT_MS }),
  }
  const took = { client: [0], channel: [0], runtime: [0] }
  for (const way of ['client', 'channel', 'runtime'] as const) took[way].length = 0
  for (let sample = -WARMUPS; sample < SAMPLES; sample++) {
    for (const way of ['client', 'channel', 'runtime'] as const) {
      await pause(REST_MS)
      const ms = await timeOf(ways[way])
      if (sample >= 0) took[way].push(ms)
    }
  }
  channel.close()
  const goalMs = GOAL_RATIO * median(took.runtime) + GOAL_MORE_MS
  const what = { client: "`true` by the public client's `exec`", channel: '`true` over an open channel' } as const
  return (['client', 'channel'] as const).map((way) => ({
    benchmark: 'exec',
    what: `${what[way]} (min / median / p95)`,
    measured: formatSpreadMs(took[way]),
    limit: `runtime's exec ${formatSpreadMs(took.runtime)}`,
    ratio: median(took[way]) / median(took.runtime),
    goal: `<= ${formatNumber(goalMs)} ms (${String(GOAL_RATIO)} times and ${String(GOAL_MORE_MS)} ms)`,
    isMet: median(took[way]) <= goalMs,
    samples: took,
  }))
}

async function timeOf(work: () => Promise<unknown>): Promise<number> {
  const beganMs = performance.now()
  await work()
  return performance.now() - beganMs
}
