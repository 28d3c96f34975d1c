import { openAgentChannel, runProgram } from './support/agent-channel.ts'
import { startCloud } from './support/cloud.ts'
import { formatNumber } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { findParts, readProcessMemory } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'
import { startSandbox } from './support/sandbox.ts'

const CHANNELS = 200
/** The pause between opening the channels and measuring the server's memory, in which the garbage collector runs. */
const SETTLE_MS = 5_000

/**
 * Opens 200 channels to one sandbox at once. Measures the time until each channel has run a command, and the memory of
 * an idle channel.
 */
export async function benchChannels(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({})
  const { id } = await startSandbox(cloud, 'bench-channels')
  const first = await openAgentChannel(cloud, id)
  await runProgram(first, 'true')
  await pause(SETTLE_MS)
  const pssMib = async (): Promise<number> => {
    const { worker, helpers } = await findParts(cloud.pid)
    const parts = [cloud.pid, ...worker, ...helpers]
    return (await Promise.all(parts.map(readProcessMemory))).reduce((sum, part) => sum + part.pssMib, 0)
  }
  const before = await pssMib()
  const beganMs = performance.now()
  const channels = await Promise.all(Array.from({ length: CHANNELS }, () => openAgentChannel(cloud, id)))
  const openMs = performance.now() - beganMs
  await pause(SETTLE_MS)
  const idle = await pssMib()
  const ranFromMs = performance.now()
  await Promise.all(channels.map((channel) => runProgram(channel, 'true')))
  const ranMs = performance.now() - ranFromMs
  for (const channel of [first, ...channels]) channel.close()
  const told = { benchmark: 'channels', limit: '', ratio: null, goal: '', isMet: null }
  const perChannelKib = ((idle - before) * 1024) / CHANNELS
  return [
    {
      ...told,
      what: `${String(CHANNELS)} channels opened at once`,
      measured: `all ready after ${formatNumber(openMs)} ms`,
    },
    { ...told, what: 'a command on each of them at once', measured: `all ended after ${formatNumber(ranMs)} ms` },
    {
      ...told,
      what: 'an idle channel, both of its ends and the relay between',
      measured: `${formatNumber(perChannelKib)} KiB of memory`,
      samples: { before, idle },
    },
  ]
}
