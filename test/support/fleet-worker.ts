import { ociKey } from '../../src/worker/mounts.ts'
import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'

import { readJson } from '../../src/lib/files.ts'
import { cgroupFolderOf, cgroupParentOf } from '../../src/worker/drivers/oci/cgroups/open-cgroups.ts'
import type { OciRunRecord } from '../../src/worker/drivers/oci/run/run-records.ts'
import { findLeftovers, runsByContainer } from './leftovers.ts'
import { spawnProgram } from './server.ts'
import { waitUntil } from './wait.ts'

const COMMAND = { timeoutMs: 20_000 }
const READY_LIMIT_MS = 120_000
const STOP_LIMIT_MS = 60_000

/** A worker in a process and a network namespace of its own. */
export type FleetWorker = {
  readonly name: string
  readonly dataDir: string
  output(): string
  pid(): number
  /** Starts the worker again with its stored credential, and waits until it has reached its control plane. `more`: further variables. */
  start(more?: Readonly<Record<string, string>>): Promise<void>
  signal(name: NodeJS.Signals): void
  kill9(): Promise<void>
  /** Resolves with the exit code once the process has ended. */
  ended(): Promise<number | null>
  /** Takes the worker's link down (`both`), or drops all packets that come from one side. */
  cut(which: 'both' | 'from-control' | 'from-worker'): Promise<void>
  heal(): Promise<void>
  /** Lists the sandboxes that have processes on this worker, by the cgroups of the machine. */
  running(): Promise<readonly RunningSandbox[]>
}

/** A sandbox with processes. `init`: the start time of its first process, in clock ticks since the machine's boot. */
export type RunningSandbox = { readonly sandbox: string; readonly run: string; readonly init: number }

export type ClosableWorker = FleetWorker & { close(): Promise<void> }

type WorkerInput = {
  readonly name: string
  readonly address: string
  readonly dataDir: string
  readonly env: Readonly<Record<string, string>>
}

export function makeFleetWorker({ name, address, dataDir, env }: WorkerInput): ClosableWorker {
  let child: ChildProcess | null = null
  let said = ''
  const settings = {
    SANDYARD_DATA_DIR: dataDir,
    SANDYARD_DRIVER: 'oci',
    SANDYARD_READY_AHEAD: '0',
    SANDYARD_WARM: '2',
    SANDYARD_VOLUME_POOL_GIB: '1',
    SANDYARD_VCPU_OVERCOMMIT: '1',
    SANDYARD_INSECURE: 'true',
    SANDYARD_SHUTDOWN: 'stop',
    SANDYARD_LOG_LEVEL: 'info',
    ...env,
  }
  const end = async (signal: NodeJS.Signals): Promise<void> => {
    if (child === null || hasEnded(child)) return
    child.kill('SIGCONT')
    child.kill(signal)
    await exitOf(child)
  }
  const start = async (more: Readonly<Record<string, string>> = {}): Promise<void> => {
    const from = said.length
    const started = spawnProgram(['worker'], { ...settings, ...more }, name)
    child = started
    for (const stream of [started.stdout, started.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        said += text
      })
    }
    await waitUntil(() => {
      assert.ok(!hasEnded(started), `the worker ${name} ended:\n${said.slice(from)}`)
      return /ready: the control plane|draining: no new/.test(said.slice(from))
    }, READY_LIMIT_MS)
  }
  return {
    name,
    dataDir,
    output: () => said,
    pid: () => child?.pid ?? 0,
    start,
    signal(signal: NodeJS.Signals) {
      child?.kill(signal)
    },
    kill9: () => end('SIGKILL'),
    async ended() {
      assert.ok(child !== null)
      await exitOf(child)
      return child.exitCode
    },
    async cut(which: 'both' | 'from-control' | 'from-worker') {
      if (which === 'both') await runCommand('ip', ['link', 'set', `v-${name}`, 'down'], COMMAND)
      if (which === 'from-control')
        await runCommand('nft', [`add rule ip cuts output ip daddr ${address} drop`], COMMAND)
      if (which === 'from-worker') await runCommand('nft', [`add rule ip cuts input ip saddr ${address} drop`], COMMAND)
    },
    async heal() {
      await runCommand('ip', ['link', 'set', `v-${name}`, 'up'], COMMAND)
      const { stdout } = await runCommand('nft', ['-a', 'list', 'table', 'ip', 'cuts'], COMMAND)
      let chain = ''
      for (const line of stdout.split('\n')) {
        chain = /chain (\w+)/.exec(line)?.[1] ?? chain
        const handle = line.includes(` ${address} drop`) ? /handle (\d+)/.exec(line)?.[1] : undefined
        if (handle !== undefined) await runCommand('nft', [`delete rule ip cuts ${chain} handle ${handle}`], COMMAND)
      }
    },
    running: () => runningIn(dataDir),
    async close() {
      if (child === null) return
      // A restarted worker removes its sandboxes when it is stopped cleanly below.
      if (hasEnded(child) && existsSync(join(dataDir, 'worker.json'))) await start().catch(() => null)
      await end('SIGTERM')
      const left = existsSync(join(dataDir, 'name-prefix')) ? await findLeftovers(dataDir) : []
      assert.deepEqual(left, [], `the worker ${name} left something behind; it said:\n${said.slice(-4000)}`)
    },
  }
}

function hasEnded(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null
}

async function exitOf(child: ChildProcess): Promise<void> {
  await waitUntil(() => hasEnded(child), STOP_LIMIT_MS)
}

/** Lists the runs whose cgroups contain processes. Only the names of containers are from the worker's own records. */
async function runningIn(dataDir: string): Promise<readonly RunningSandbox[]> {
  const id = join(dataDir, 'name-prefix')
  if (!existsSync(id)) return []
  const base = cgroupFolderOf(cgroupParentOf(ociKey(readFileSync(id, 'utf8'))))
  const containers = existsSync(base) ? readdirSync(base) : []
  const running = containers.filter((one) => [one, join(one, 'c')].some((group) => hasProcesses(join(base, group))))
  const runs = runsByContainer(dataDir)
  const live = running.map((container) => runs.get(container) ?? container)
  const records = live.map((run) =>
    readJson<Pick<OciRunRecord, 'sandbox_id' | 'started'>>(join(dataDir, 'sandboxes/runs', run, 'state.json')),
  )
  return (await Promise.all(records)).flatMap((record, at) =>
    record === null
      ? []
      : [{ run: live[at] ?? '', sandbox: record.sandbox_id, init: record.started?.init?.startTicks ?? 0 }],
  )
}

function hasProcesses(group: string): boolean {
  try {
    return readFileSync(join(group, 'cgroup.procs'), 'utf8') !== ''
  } catch {
    return false // the cgroup was removed after the folder was listed
  }
}
