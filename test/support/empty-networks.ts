import { existsSync } from 'node:fs'
import type { RunId } from '../../src/domain/ids.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import type { SandboxNetworks } from '../../src/worker/network/sandbox-network.ts'
import { localHostCommands } from '../../src/worker/processes/system-calls.ts'

/** Networks in which nothing is reachable, for tests of what else a driver does. */
export function makeEmptyNetworks(prefix: string): SandboxNetworks {
  const nameOf = (run: RunId): string => `${prefix}${run}`
  return {
    canJudgeNames: false,
    publishes: [],
    setSecrets: () => Promise.resolve(),
    onRefused: () => undefined,
    async attach(run) {
      const netnsPath = `/run/netns/${nameOf(run)}`
      if (!existsSync(netnsPath)) await localHostCommands.callSystem(['network', netnsPath])
      return { netnsPath, ipv4: null, resolvers: [], published: [] }
    },
    unpublish: () => Promise.resolve(),
    async detach(run) {
      if (existsSync(`/run/netns/${nameOf(run)}`))
        await runCommand('ip', ['netns', 'delete', nameOf(run)], { timeoutMs: 10_000 })
    },
    list: () => Promise.resolve([]),
    use: () => ({ ready: 0, free: 1_000 }),
    close: () => Promise.resolve(),
  }
}
